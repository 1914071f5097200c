"""House rules that no linter knows."""

import ast
import json
import re
from collections import defaultdict
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

PARTICIPLE = re.compile(
    r"""(?!(need|feed|seed|embed|speed|shed|proceed|exceed|succeed|string|ping|thing|ring|spring)$)
    ([a-z]{2,}(ed|ing)
    |begun|borne|bound|bought|broken|brought|built|caught|chosen|done|drawn|driven|fallen|fed|felt
    |forbidden|foreseen|forgotten|found|frozen|given|gone|grown|heard|held|hidden|kept|known|laid
    |lain|led|left|lent|lost|made|meant|met|mistaken|overtaken|paid|rewritten|risen|said|seen|sent
    |shaken|shown|slept|sold|sought|spent|spoken|stolen|stood|struck|stuck|swept|sworn|swum|taken
    |taught|thought|thrown|told|torn|undone|understood|unheard|unread|upheld|withdrawn|withheld
    |woken|won|worn|wound|woven|written)""",
    re.VERBOSE,
)

# Public names that several classes share, on purpose.
TWINS = {
    "IdempotencyMiddleware",  # one for each protocol and framework
    *("Declined", "Released", "Replayed"),  # what became of a call, as a value and as an event
    "OutcomeUnknown",  # the same as an error and as an event
    *("Busy", "Denied", "Unknown"),  # errors, and what an inbox says; an error keeps its name
    "Event",  # of the engine, and of a webhook
    "Refused",  # a swap, and a webhook's signature
    "Limits",  # of a publisher, and of statements
    "Exchange",  # one for each library
}


def _files() -> Iterator[Path]:
    for path in [*ROOT.iterdir(), *(p for name in FOLDERS for p in (ROOT / name).rglob("*"))]:
        if path.is_file() and not {"__pycache__", ".git"} & {*path.parts} and path.suffix != ".db":
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


def test_functions_are_verbs_or_nouns_and_not_participles(sources: dict[str, ast.Module]) -> None:
    """`render_error` rather than `told`. A few read well all the same: at most one in fifty."""
    names = [name for tree in sources.values() for name in _function_names(tree)]
    participles = sorted(name for name in names if PARTICIPLE.fullmatch(name.strip("_")))
    assert len(participles) <= 0.02 * len(names), participles


def _function_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:2] != "__":
            yield node.name


def test_a_class_name_means_one_thing(sources: dict[str, ast.Module]) -> None:
    """Engines may share a name for the same role: each has a room of its own."""
    places: dict[str, set[str]] = defaultdict(set)
    for name, tree in sources.items():
        room = re.sub(r"oncekey/stores/(mysql|postgres|sqlite|redis|dynamodb)/.*", "engine", name)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[f"{name.split('/')[1]}.{node.name}"].add(room)
    several = {name.partition(".")[2] for name, rooms in places.items() if len(rooms) > 1}
    assert several == TWINS


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
