"""The documentation is complete and true: examples run, links lead on, nothing is left out."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oncekey.attempt import Attempt
from oncekey.core.headers import first_headers, replay_headers
from oncekey.core.policy import DEFAULTS, Policy
from oncekey.core.problem import Kind, Problem, as_json
from oncekey.core.profiles import PROFILES, Header, Profile, render
from oncekey.core.record import Answer
from oncekey.stores.url import KINDS
from tests.docs import generated
from tests.docs.pages import (
    DOCS,
    PAGES,
    ROOT,
    anchor,
    blocks,
    existing_tests,
    headings,
    links,
    named_tests,
    rows,
    script,
)

TEXTS = {name: path.read_text() for name, path in PAGES.items()}


def cells(page: str) -> dict[str, list[str]]:
    """The rows of a page by what their first cell holds in backticks, or at all."""
    return {row[0].strip("`"): row for row in rows(TEXTS[page])}


# --------------------------------------------------------------------------------- examples


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if script(text)])
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    """All of them as one script, in an empty folder; line numbers are those of the page."""
    program = tmp_path / Path(page).with_suffix(".py").name
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


# ------------------------------------------------------------------------------ completeness


@pytest.mark.parametrize("field", dataclasses.fields(Policy), ids=lambda field: field.name)
def test_every_policy_field_is_documented_with_its_default(field: Any) -> None:
    assert cells("docs/policy.md")[field.name][1] == f"`{shown(getattr(DEFAULTS, field.name))}`"


def shown(value: Any) -> str:
    if callable(value):
        return str(value.__name__)
    if isinstance(value, float):
        return f"{value:.0f}"
    return json.dumps(value) if isinstance(value, str) else repr(value).replace("'", '"')


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_has_its_section(name: str) -> None:
    assert name in headings(TEXTS["docs/profiles.md"])


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Profile) if f.init])
def test_every_profile_field_is_documented(name: str) -> None:
    assert name in cells("docs/profiles.md")


@pytest.mark.parametrize("kind", Kind)
def test_every_refusal_has_its_section_and_a_true_example(kind: Kind) -> None:
    [section] = re.findall(rf"^### {kind}\n(.*?)(?=^##|\Z)", TEXTS["docs/words.md"], re.M | re.S)
    [example] = [json.loads(block) for block in blocks(section, "json")]
    wait_s, fields = example.get("retry_after_s"), tuple(example.get("fields", ()))
    problem = Problem(kind, example["detail"], example["retryable"], wait_s, fields)

    assert example == as_json(problem, PROFILES["oncekey"].status(kind))
    assert "**Who acts:**" in section
    assert "**Retry?**" in section


WORDS = (
    *(
        "key",
        "tenant",
        "operation",
        "scope",
        "record id",
        "fingerprint",
        "record",
        "attempt",
        "claim",
    ),
    *(
        "lease",
        "fence",
        "complete",
        "release",
        "replay",
        "in flight",
        "mismatch",
        "unknown",
        "step",
    ),
    *("retention", "sweep", "recover", "profile"),
)


@pytest.mark.parametrize("word", WORDS)
def test_every_word_is_explained(word: str) -> None:
    assert f"\n**{word}**: " in TEXTS["docs/words.md"]


def header_names() -> set[str]:
    """Every header that some profile reads or writes."""
    answer, names = Answer(400, ((b"x-request-id", b"1"),), b""), {"idempotency-stored"}
    for profile in PROFILES.values():
        names |= {
            each.name for each in (profile.key_in, profile.first_sent_in) if type(each) is Header
        }
        lines = first_headers(answer, profile, "k", 0.0) + replay_headers(answer, profile, "k", 0.0)
        for kind in Kind:
            problem = Problem(kind, "", retryable=True, retry_after_s=1.0, location=b"/")
            lines += render(problem, profile).headers
        names |= {name.decode() for name, _ in lines}
    return {name.lower() for name in names} - {"x-request-id"}


@pytest.mark.parametrize("name", sorted(header_names()))
def test_every_header_is_documented(name: str) -> None:
    assert name in {first.lower() for first in cells("docs/headers.md")}


@pytest.mark.parametrize("scheme", [scheme for kind in KINDS for scheme in kind.schemes])
def test_every_store_is_documented(scheme: str) -> None:
    assert f"`{scheme}://" in TEXTS["docs/stores.md"]


ATTEMPT = {name for name in dir(Attempt) if not name.startswith("_")}
FOR_THE_ENGINE = {"claimed_at", "finished", "held", "lease_until", "mark_lost", "policy", "verdict"}
ALIKE = {"lease_s", "retention_s"}  # as in the policy


@pytest.mark.parametrize("name", sorted(ATTEMPT - FOR_THE_ENGINE - ALIKE))
def test_everything_that_a_handler_may_ask_is_documented(name: str) -> None:
    assert re.search(rf"`{name}(\(.*?\))?`", TEXTS["docs/handlers.md"])


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


def test_the_documentation_is_where_refusals_say_that_it_is() -> None:
    assert (ROOT / PROFILES["oncekey"].docs_url) == DOCS / "words.md"
