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

ENGINES = {"memory", "sqlite", "postgres", "mysql", "redis", "dynamodb", "tiered", "sealed"}


def _files() -> Iterator[Path]:
    for path in [*ROOT.iterdir(), *(p for name in FOLDERS for p in (ROOT / name).rglob("*"))]:
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".db":
            yield path


@pytest.fixture(scope="module")
def sources() -> dict[str, ast.Module]:
    paths = sorted((ROOT / "src").rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


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


def test_time_and_chance_have_their_places(sources: dict[str, ast.Module]) -> None:
    wrong = []
    for name, tree in sources.items():
        inside = name.removeprefix("src/oncekey/").removeprefix("src/payments/")
        for reached in _reached_for(tree):
            allowed = RESERVED.get(reached)
            if allowed is not None and not inside.startswith(tuple(allowed.split())):
                wrong.append(f"{name}: {reached} is only for {allowed}")
    assert not wrong


def test_files_and_functions_fit_one_thought(sources: dict[str, ast.Module]) -> None:
    wrong = []
    for name, tree in sources.items():
        lines = len((ROOT / name).read_text().splitlines())
        if lines >= FILE_LINES_MAX:
            wrong.append(f"{name} has {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines >= FUNCTION_LINES_MAX:
                    wrong.append(f"{name}: {node.name} has {lines} lines")
    assert not wrong


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    for folder, most in {"oncekey": 10, "oncekey/stores": 12}.items():
        files = sorted(path.name for path in (ROOT / "src" / folder).glob("*.py"))
        assert len(files) <= most, f"{folder} has {len(files)} modules: {files}"


def test_code_asks_what_a_store_can_do_not_what_it_is_called(
    sources: dict[str, ast.Module],
) -> None:
    """`store.transactions` or `store.outbox` is None where an engine has none."""
    for name, tree in sources.items():
        inside = name.removeprefix("src/oncekey/")
        if inside == "cli/plan.py":  # it plans for engines that it does not open
            continue
        for node in ast.walk(tree):
            for engine in _engines_compared_with_a_name(node):
                assert inside.startswith(f"stores/{engine}"), f"{name}: {ast.unparse(node)}"


def _engines_compared_with_a_name(node: ast.AST) -> set[str]:
    """The engines' names in `x.name == "…"`, `x.name in ("…", …)` and `match x.name: case "…"`."""
    if isinstance(node, ast.Compare):
        compared = [node.left, *node.comparators]
    elif isinstance(node, ast.Match):
        compared = [node.subject]
    else:
        return set()
    if not any(isinstance(each, ast.Attribute) and each.attr == "name" for each in compared):
        return set()
    if "dialect.name" in ast.unparse(compared[0]):  # SQLAlchemy's
        return set()
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and each.value in ENGINES
    }


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
