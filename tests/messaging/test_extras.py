"""The error when a broker's library is not installed."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.stores.test_urls import Absent


@pytest.mark.parametrize("name", ["celery", "faststream"])
def test_a_library_that_is_missing_is_told_with_its_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in list(sys.modules):
        if module.partition(".")[0] == name or module == f"oncekey.messaging.{name}":
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Absent(name), *sys.meta_path])
    told = rf"No module named '{name}': pip install 'oncekey\[{name}\]'"
    with pytest.raises(ModuleNotFoundError, match=told):
        importlib.import_module(f"oncekey.messaging.{name}")
