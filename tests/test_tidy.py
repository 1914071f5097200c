"""House rules that no linter knows."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = (".ci", "bench", "docs", "examples", "requirements", "simulator", "soak", "src", "tests")
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60

# What only the named modules may reach for; everyone else is given a clock, or a token.
RESERVED = {
    "time.time": "_system/clock.py clock.py",
    "time.time_ns": "_system/clock.py clock.py",
    "time.monotonic": "_system/clock.py clock.py",
    "time.monotonic_ns": "_system/clock.py clock.py",
    "time.perf_counter": "_system/clock.py clock.py",
    "time.clock_gettime": "_system/clock.py clock.py",
    "datetime.now": "_system/clock.py clock.py",
    "datetime.datetime.now": "_system/clock.py clock.py",
    "random": "_system/chance.py testing/ storage/ids.py",
    "secrets": "storage/ids.py",
    "uuid.uuid1": "_system/chance.py",
    "uuid.uuid4": "_system/chance.py",
    "os.urandom": "_system/chance.py stores/sealed/envelope.py stores/tiered/store.py",
}


def _files() -> Iterator[Path]:
    for path in [*ROOT.iterdir(), *(p for name in FOLDERS for p in (ROOT / name).rglob("*"))]:
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".db":
            yield path


def _sources() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*.py"))


def _reached_for(tree: ast.Module) -> Iterator[str]:
    """Every module imported and every dotted name used, as written."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


@pytest.mark.parametrize("name", _sources())
def test_time_and_chance_have_their_places(name: str) -> None:
    inside = name.removeprefix("src/oncekey/").removeprefix("src/payments/")
    for reached in _reached_for(ast.parse((ROOT / name).read_text())):
        allowed = RESERVED.get(reached, inside).split()
        assert inside.startswith(tuple(allowed)), f"{reached} is only for {allowed}"


@pytest.mark.parametrize("name", _sources())
def test_files_and_functions_fit_one_thought(name: str) -> None:
    text = (ROOT / name).read_text()
    assert len(text.splitlines()) < FILE_LINES_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            assert lines < FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


def test_the_repository_speaks_of_the_product_alone() -> None:
    unwanted = {
        "unfinished business": re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b"),
        "a path of some machine": re.compile(r"(?<![\w.])/(work|root|home|Users)/\w"),
    }
    for path in _files():
        text = path.read_text(errors="replace")
        for what, pattern in unwanted.items():
            found = [match[0] for match in pattern.finditer(text)]
            assert not found, f"{path.relative_to(ROOT)} has {what}: {found}"


def test_requirements_are_hashed_and_name_no_registry() -> None:
    for path in sorted((ROOT / "requirements").iterdir()):
        text = path.read_text()
        assert "://" not in text
        assert "index-url" not in text
        for pin in re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]:
            assert re.match(r"[\w.-]+==", pin), pin
            assert "--hash=sha256:" in pin, pin


def test_node_packages_are_pinned_by_digest_and_name_no_registry() -> None:
    locks = [path for path in _files() if path.name == "package-lock.json"]
    assert locks
    for path in locks:
        text = path.read_text()
        assert "://" not in text, path
        packages = json.loads(text)["packages"]
        assert all("integrity" in pin for name, pin in packages.items() if name), path
        assert "omit-lockfile-registry-resolved=true" in path.with_name(".npmrc").read_text()
