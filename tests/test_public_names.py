"""Where users import from: the public homes, and the old names that still work."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oncekey
import oncekey.client
import oncekey.stores
import oncekey.testing
from tests.docs.pages import TEXTS, blocks, script

ROOT = Path(__file__).parent.parent
INSIDE = ("ARCHITECTURE.md", "CONTRIBUTING.md")  # for those who work on oncekey itself

# What the pages of 0.1 import from modules that are gone: where each name is now.
MOVED = [
    ("oncekey.recoverer", "Recoverer", "oncekey"),
    ("oncekey.core.profiles", "BodyField", "oncekey"),
    ("oncekey.core.profiles", "Header", "oncekey"),
    ("oncekey.core.profiles", "QueryParameter", "oncekey"),
    ("oncekey.core.problem", "Kind", "oncekey"),
    ("oncekey.core.backoff", "full_jitter", "oncekey.client"),
    ("oncekey.clock", "FakeClock", "oncekey.testing"),
    ("oncekey.probes", "arm", "oncekey.testing"),
    ("oncekey.probes", "disarm", "oncekey.testing"),
]


@pytest.mark.parametrize(("old", "name", "new"), MOVED)
def test_an_import_of_0_1_works_and_says_what_to_write(
    old: str, name: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, old, raising=False)

    with pytest.warns(DeprecationWarning, match=f"from {re.escape(new)} import .*{name}") as warned:
        module = importlib.import_module(old)

    assert getattr(module, name) is getattr(importlib.import_module(new), name)
    assert name in importlib.import_module(new).__all__
    assert str(warned[0].message).startswith(f"{old} is deprecated")


def test_the_warning_names_the_line_that_imports(tmp_path: Path) -> None:
    program = tmp_path / "old.py"
    program.write_text("import os\nfrom oncekey.recoverer import Recoverer\n")

    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=True)

    assert f"{program}:2: DeprecationWarning: oncekey.recoverer is deprecated" in ran.stderr


def test_an_application_is_warned_of_nothing() -> None:
    public = "oncekey, oncekey.client, oncekey.stores, oncekey.testing, oncekey.webhooks"
    subprocess.run([sys.executable, "-W", "error", "-c", f"import {public}"], check=True)


def test_the_simulator_says_where_it_is_now() -> None:
    with pytest.raises(ImportError, match=r"\./dev simulate"):
        importlib.import_module("oncekey.testing.simulate")


@pytest.mark.parametrize("module", [oncekey, oncekey.client, oncekey.stores, oncekey.testing])
def test_what_a_public_module_exports_is_there(module: object) -> None:
    names: list[str] = module.__all__  # type: ignore[attr-defined]
    assert all(hasattr(module, name) for name in names)
    assert len(set(names)) == len(names)


# The contract suite's own tools: what an author of a store does not need for the store itself.
_OF_THE_SUITE = {
    "DEFAULTS",
    "SECONDS_MAX",
    "STEP_BYTES_MAX",
    "StoreUnavailable",  # from `oncekey`
    "SystemClock",
    "blank",
    "with_tombstone",
}


def test_oncekey_stores_has_all_that_the_contract_speaks_of() -> None:
    public = {*oncekey.stores.__all__, *vars(oncekey.stores.lifecycle), *_OF_THE_SUITE}
    for path in (ROOT / "src/oncekey/testing/contract").glob("*.py"):
        for module, name in _imports(ast.parse(path.read_text())):
            if module.startswith("oncekey.") and "testing" not in module and name:
                assert name in public, f"{path.name}: {name} of {module}"


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Every import, as module and name; the name is empty where a module is imported as it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def _users() -> dict[str, str]:
    """The programs of users that this repository has: payments, the examples and the pages."""
    paths = [*(ROOT / "src/payments").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    programs = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    pages = {name: text for name, text in TEXTS.items() if script(text)}
    return programs | {name: "\n".join(blocks(text, "python")) for name, text in pages.items()}


def test_users_import_public_names_only() -> None:
    deprecated = {old for old, _, _ in MOVED}
    for name, program in _users().items():
        for module, imported in _imports(ast.parse(program)):
            parts = [*module.split("."), imported]
            if parts[0] == "oncekey":
                private = [part for part in parts if part.startswith("_")]
                assert not private, f"{name}: {module} is private: import from a public module"
                assert module not in deprecated, f"{name}: {module} is deprecated"


def test_pages_name_public_modules_only() -> None:
    for page, text in TEXTS.items():
        visible = re.sub(r"<!-- python$.*?^-->$", "", text, flags=re.MULTILINE | re.DOTALL)
        if page not in INSIDE:
            assert not re.findall(r"\boncekey(?:\.\w+)*\._\w+", visible), page
