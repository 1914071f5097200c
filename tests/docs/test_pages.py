"""The documentation is true: examples run, links lead somewhere, tests that it names exist.

That nothing is left out of the reference is for `test_reference.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import generated
from tests.docs.pages import (
    PAGES,
    ROOT,
    TEXTS,
    anchor,
    existing_tests,
    headings,
    links,
    named_tests,
    rows,
    script,
)

# --------------------------------------------------------------------------------- examples


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if script(text)])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    """All of them as one script, in an empty folder; line numbers are those of the page."""
    # A name that no module has: a page about flask must not be what `import flask` finds.
    program = tmp_path / f"page_{Path(page).stem}.py"
    program.write_text(script(TEXTS[page]))

    command = [sys.executable, "-W", "error", program.name]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    assert ran.returncode == 0, f"{page}, by its line numbers:\n{ran.stderr}"


# -------------------------------------------------------------------------- links, generated


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in links(TEXTS[page]):
        name, _, fragment = target.partition("#")
        path = (PAGES[page].parent / name).resolve() if name else PAGES[page]
        assert path.exists(), target
        if fragment:
            assert fragment in map(anchor, headings(path.read_text())), target


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_up_to_date(page: str) -> None:
    assert generated.renewed(TEXTS[page]) == TEXTS[page], "run ./dev docs"


def test_every_generated_part_stands_somewhere() -> None:
    for name in generated.PARTS:
        assert any(f"<!-- generated: {name} -->" in text for text in TEXTS.values()), name


def test_every_page_of_the_documentation_is_linked() -> None:
    """From the first page, or from one that it links."""
    found = {"README.md"}
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        for target in links(TEXTS[page]):
            path = (PAGES[page].parent / target.partition("#")[0]).resolve()
            found.add(os.path.relpath(path, ROOT))
    assert set(PAGES) <= found


# --------------------------------------------------------------------- promises and edge cases


def test_every_promise_names_its_tests() -> None:
    sections = re.findall(
        r"^## (P\d+)\b.*?\n(.*?)(?=^## |\Z)", TEXTS["docs/promises.md"], re.M | re.S
    )

    assert [name for name, _ in sections] == [f"P{number}" for number in range(1, 13)]
    for name, section in sections:
        assert named_tests(section), name


EDGE_CASES = [row for row in rows(TEXTS["docs/edge-cases.md"]) if re.fullmatch(r"E\d+", row[0])]


def test_every_edge_case_has_its_row() -> None:
    assert [row[0] for row in EDGE_CASES] == [f"E{number}" for number in range(1, 72)]


@pytest.mark.parametrize("row", EDGE_CASES, ids=lambda row: str(row[0]))
def test_an_edge_case_is_tested_or_it_is_said_why_not(row: list[str]) -> None:
    number, _, does, proof = row
    carrying = {name for name in existing_tests() if number.lower() in name.split("_")}

    assert does
    if not named_tests(proof):
        assert proof.startswith(("Not yet:", "Not ours:")), f"{number} names no test"
        assert not carrying, f"{number} has tests now: name them in docs/edge-cases.md"


@pytest.mark.parametrize("page", PAGES)
def test_tests_that_are_named_exist(page: str) -> None:
    assert not set(named_tests(TEXTS[page])) - existing_tests()


def test_the_folder_that_a_new_store_is_compared_with_is_shown_as_it_is() -> None:
    shown = re.search(r"```text\nstores/sqlite/\n(.*?)```", TEXTS["CONTRIBUTING.md"], re.DOTALL)
    assert shown is not None
    names = set(re.findall(r"^  (\w+\.py)", shown[1], re.MULTILINE))
    folder = ROOT / "src/oncekey/stores/sqlite"
    assert names == {path.name for path in folder.glob("*.py")} - {"__init__.py"}
