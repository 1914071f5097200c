"""A doctor whose word is compared with what an application does at its start."""

import contextlib
from dataclasses import dataclass
from typing import Any

import pytest

from oncekey._core.verbs import Count
from oncekey.errors import StoreUnfit
from oncekey.stores.connection import StoreConnection
from oncekey.stores.urls import open_store
from tests.cli.conftest import Oncekey


@dataclass(frozen=True)
class Doctor:
    """Looks at a store, and starts it as an application would."""

    oncekey: Oncekey

    def findings(self, url: str, code: int = 0) -> dict[str, dict[str, Any]]:
        ran = self.oncekey("doctor", "--json", url)
        assert ran.code == code, ran.err + ran.out
        return {found["what"]: found for found in ran.json["findings"]}

    def refuses(self, url: str, what: str, seen: str, accepted_by: str | None = None) -> None:
        """Both do, for the same reason; and both accept it by its name, if it has one."""
        found = self.findings(url, code=1)[what]
        assert seen in found["seen"]
        assert (found["level"], found["risk"]) == ("unsafe", accepted_by)
        assert found["why"]
        assert found["do"]
        with pytest.raises(StoreUnfit) as refused:
            start(url)
        assert found["seen"] in str(refused.value)
        assert found["do"] in str(refused.value)
        if accepted_by is None:
            assert "allow=" not in str(refused.value)
            return
        assert f"allow={accepted_by}" in str(refused.value)
        accepting = f"{url}{'&' if '?' in url else '?'}allow={accepted_by}"
        assert self.findings(accepting)[what]["level"] == "accepted"
        start(accepting)

    def advises(self, url: str, what: str, seen: str) -> None:
        """And an application starts."""
        found = self.findings(url)[what]
        assert seen in found["seen"]
        assert found["level"] == "advice"
        assert found["why"]
        assert found["do"]
        start(url)


def start(url: str) -> None:
    with contextlib.closing(StoreConnection(open_store(url))) as line:
        line.perform([Count()])
