"""Each mutant lives in a copy of the tree, where the tests that it concerns must turn red."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.mutants import table
from tests.mutants.durable import DURABLE
from tests.mutants.dynamodb import DYNAMODB
from tests.mutants.endings import ENDINGS
from tests.mutants.expiring import EXPIRING
from tests.mutants.functions import FUNCTIONS
from tests.mutants.looping import LOOPING
from tests.mutants.mariadb import MARIADB
from tests.mutants.table import Mutant

MUTANTS = table.MUTANTS | DURABLE | FUNCTIONS | EXPIRING | MARIADB | LOOPING | DYNAMODB
MUTANTS |= ENDINGS

ROOT = Path(__file__).parents[2]
RUN_S_MAX = 50.0
_FIXTURES = {"dynamodb": "dynamodb_endpoint"}
GREEN, RED = 0, 1
"""As pytest ends when all passed, and when some failed. Anything else is no proof."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_applies(name: str) -> None:
    mutant = MUTANTS[name]
    found = (ROOT / "src/oncekey" / mutant.file).read_text().count(mutant.text)
    assert found == mutant.times, (
        f"mutant no longer applies: {name!r} looks for this text {mutant.times} times in "
        f"{mutant.file} and finds it {found} times; say in table.py how the same mistake would "
        f"be written now:\n{mutant.text}"
    )


@pytest.mark.parametrize("name", MUTANTS)
def test_the_tests_that_must_notice_a_mutant_exist(name: str) -> None:
    mutant = MUTANTS[name]
    places = [ROOT / mutant.tests, *(ROOT / "src/oncekey/testing/contract").glob("*.py")]
    written = "".join(place.read_text() for place in places)
    for test in re.findall(r"\btest_\w+", mutant.chosen):
        assert f"def {test}" in written, f"{mutant.tests} has no {test}: which test is it now?"


class Tree:
    """A copy of the product and its tests, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("src", "tests", "simulator"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        self._changes = 0

    def run(self, tests: Iterable[tuple[str, str]], **servers: str) -> tuple[int, str]:
        """How pytest ends in here, and what it says."""
        files = sorted({file for file, _ in tests})
        chosen = " or ".join(sorted({f"({named})" for _, named in tests}))
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "CI"},
            **{f"ONCEKEY_TEST_{name.upper()}_URL": url for name, url in servers.items()},
            "PYTHONPATH": str(self.folder / "src"),
        }
        done = subprocess.run(
            [*command, "-k", chosen, *files],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
        )
        return done.returncode, done.stdout + done.stderr

    def change(self, mutant: Mutant) -> None:
        """Put the mistake in, and see to it that nobody runs what was compiled before."""
        path = self.folder / "src/oncekey" / mutant.file
        path.write_text(path.read_text().replace(mutant.text, mutant.replacement))
        self._date(path)

    def restore(self, mutant: Mutant) -> None:
        path = self.folder / "src/oncekey" / mutant.file
        shutil.copyfile(ROOT / "src/oncekey" / mutant.file, path)
        self._date(path)

    def _date(self, path: Path) -> None:
        self._changes += 1
        moment = (ROOT / "pyproject.toml").stat().st_mtime + self._changes
        os.utime(path, (moment, moment))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"))


def servers(request: pytest.FixtureRequest, mutants: Iterable[Mutant]) -> dict[str, str]:
    """Those that the mutants' tests need, shared with the rest of this run."""
    names = {mutant.server for mutant in mutants if mutant.server}
    return {name: request.getfixturevalue(_FIXTURES.get(name, f"{name}_url")) for name in names}


@pytest.mark.long
def test_the_copy_is_the_one_that_is_tested(tree: Tree) -> None:
    where = [sys.executable, "-c", "import oncekey; print(oncekey.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(tree.folder / "src")}
    told = subprocess.run(where, cwd=tree.folder, env=environment, capture_output=True, text=True)
    assert told.stdout.startswith(str(tree.folder))


@pytest.mark.long
@pytest.mark.parametrize("file", sorted({mutant.tests for mutant in MUTANTS.values()}))
def test_without_a_mutant_all_is_green(
    request: pytest.FixtureRequest, tree: Tree, file: str
) -> None:
    mutants = [mutant for mutant in MUTANTS.values() if mutant.tests == file]
    chosen = [(mutant.tests, mutant.chosen) for mutant in mutants]
    end, says = tree.run(chosen, **servers(request, mutants))
    assert end == GREEN, says


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_noticed(request: pytest.FixtureRequest, tree: Tree, name: str) -> None:
    mutant = MUTANTS[name]
    tree.change(mutant)
    try:
        end, says = tree.run([(mutant.tests, mutant.chosen)], **servers(request, [mutant]))
    finally:
        tree.restore(mutant)
    assert end == RED, f"nobody noticed that {name} (pytest ended with {end}):\n{says}"
