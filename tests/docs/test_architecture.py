"""The pages for contributors name files, modules and functions that exist.

In backticks: a path (`src/oncekey/web/asgi.py`, or from `src/oncekey` or `src` on: `web/asgi.py`,
or a file's name alone), a dotted name by its last parts (`Guard.begin`, `lifecycle.decide`), or a
class or constant alone (`Guard`, `DECISIONS`).
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

import simulator
from bench import calls
from tests.docs import generated
from tests.docs.pages import PAGES, ROOT, TEXTS, blocks

FOR_CONTRIBUTORS = ("ARCHITECTURE.md", "CONTRIBUTING.md")
ROOTS = (ROOT, ROOT / "src" / "oncekey", ROOT / "src")
CODE = ("src", "simulator", "soak", "bench", "tests")

_QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"[\w.*-]+(/[\w.*-]+)*/?")
_DOTTED = re.compile(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_CALL = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+(?:\(.*\))?")
_ALONE = re.compile(r"_?[A-Z]\w+|_[a-z]\w{5,}")
_SUFFIXES = (".py", ".md", ".sql", ".lua", ".toml", ".txt")


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    folders = "|".join((*CODE, "examples", "oncekey"))
    paths = re.findall(rf"`((?:{folders})/[\w./-]+\.\w+)`", TEXTS[page])
    assert not [path for path in paths if not exists(path)]


@pytest.mark.parametrize("page", FOR_CONTRIBUTORS)
def test_what_is_named_exists(page: str) -> None:
    quoted = set(_QUOTED.findall(_FENCED.sub("", TEXTS[page])))
    assert not sorted(name for name in quoted if not exists(name))


def test_a_name_that_is_gone_is_found() -> None:
    assert exists("stores/base.py")
    assert exists("Guard.begin")
    assert exists("session.open()")
    assert exists("runtime.background.apart")
    assert not exists("session.no_such_method(edge.call)")
    assert not exists("runtime.background.no_such_method")
    assert not exists("stores/no_such_file.py")
    assert not exists("Guard.no_such_method")
    assert not exists("NoSuchClass")
    assert exists("_core.lifecycle")
    assert not exists("core.lifecycle")


def test_the_modules_of_the_simulator_are_those_that_it_lists() -> None:
    listed = re.findall(r"^    (\w+(?: \w+)*)  ", simulator.__doc__ or "", re.MULTILINE)
    modules = {path.stem for path in (ROOT / "simulator").glob("[!_.]*")}
    assert {name for line in listed for name in line.split()} == modules


def exists(name: str) -> bool:
    """Whether a name is one of ours; what is none of the three kinds counts as existing."""
    if _PATH.fullmatch(name) and ("/" in name or name.endswith(_SUFFIXES)):
        if "/" not in name and any((ROOT / "src").rglob(name)):
            return True
        return any(any(root.glob(name.rstrip("/"))) for root in ROOTS)
    if _CALL.fullmatch(name):
        return all(_is_defined(each) for each in _DOTTED.findall(name))
    return _ALONE.fullmatch(name) is None or name in _OTHERS or name in _endings()


def _is_defined(dotted: str) -> bool:
    """Attributes of attributes count if each pair does: `runtime.background.apart`."""
    parts = [_ALIASES.get(part, part) for part in dotted.split(".")]
    if dotted in _OTHERS or _folded(".".join(parts)) in _endings():
        return True
    return len(parts) > 2 and all(_folded(".".join(pair)) in _endings() for pair in pairwise(parts))


def _folded(name: str) -> str:
    """`edge.call` is a call of `Edge.call`, and `store_calls.ask` of `StoreCalls.ask`."""
    return re.sub(r"(?<=\w)_", "", name).casefold()


_OTHERS = {"None", "GET", "POST", "blame.ignoreRevsFile"}
_ALIASES = {"attempts": "attempt", "unit": "AsyncUnit"}


@functools.cache
def _endings() -> set[str]:
    """Every dotted name of the code, and each of its endings, as it is and folded."""
    found: set[str] = set()
    for folder in CODE:
        for path in (ROOT / folder).rglob("*.py"):
            top = ROOT / "src" if folder == "src" else ROOT
            module = path.relative_to(top).with_suffix("").parts
            for names in _names(path):
                whole = (*(part for part in module if part != "__init__"), *names)
                endings = {".".join(whole[start:]) for start in range(len(whole))}
                found |= endings | set(map(_folded, endings))
    return found


def _names(path: Path) -> Iterator[tuple[str, ...]]:
    """The module itself, what it defines, and what its classes define."""
    yield ()
    yield from _defined(ast.parse(path.read_text()).body)


def _defined(body: list[ast.stmt]) -> Iterator[tuple[str, ...]]:
    for node in body:
        match node:
            case ast.ClassDef(name):
                yield (name,)
                yield from ((name, *inner) for inner in _defined(node.body))
                for each in ast.walk(node):  # what its methods set
                    if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                        yield name, each.attr
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
                yield (name,)
            case ast.Assign(targets):
                names = [each for target in targets for each in ast.walk(target)]
                yield from ((each.id,) for each in names if isinstance(each, ast.Name))
            case ast.AnnAssign(target=ast.Name(name)):
                yield (name,)


# ------------------------------------------------------------------------- the first request


def test_a_first_request_takes_the_steps_that_are_shown() -> None:
    """In this order, in a real request; other calls may lie in between."""
    [shown] = (each for each in blocks(TEXTS["ARCHITECTURE.md"], "text") if "__call__" in each)
    steps = re.findall(r"^ *(\S+\.py) +(\S+)", shown, re.MULTILINE)
    assert len(steps) > 15

    taken = iter([(call.file, call.function) for call in calls.traces()["first"].calls])
    for step in steps:
        assert step in taken, f"{step}: not called, or not in this order"


# ---------------------------------------------------------------------------------- the rooms


def test_every_room_is_named() -> None:
    """And every module beside them, if only as a name of 0.1."""
    section = TEXTS["ARCHITECTURE.md"].partition("\n## The rooms\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(?:oncekey\.)?([a-z_]+)`", section))
    modules = {path.stem for path in generated.PACKAGE.glob("[!.]*") if path.suffix in ("", ".py")}
    assert modules - {"__init__", "__main__", "__pycache__"} <= named


def test_arrows_that_follow_from_others_are_left_out() -> None:
    edges = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set[str]()}
    assert generated.reduced(edges) == {"a": {"b"}, "b": {"c"}, "c": {"d"}}


def test_only_imports_that_happen_are_counted() -> None:
    module = ast.parse(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "def late():\n    from c import d\n"
    )
    assert {"c.d", "typing.TYPE_CHECKING"} <= set(generated.imports(module))
    assert "a" not in set(generated.imports(module))
