"""Nothing is left out of the reference: every setting, refusal, header and store has its place."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from oncekey._core.policy import DEFAULTS, Policy
from oncekey._core.problems import Kind, Problem, as_json
from oncekey._core.profiles import PROFILES, Header, Profile, render
from oncekey._core.record import Answer
from oncekey._core.response_headers import first_headers, replay_headers
from oncekey._engine.attempt import Attempt
from oncekey._system.probes import PROBES
from oncekey.stores.dynamodb import store
from oncekey.stores.postgres import connection as postgres_connection
from oncekey.stores.redis import store as redis_store
from oncekey.stores.urls import KINDS
from tests.docs.pages import TEXTS, blocks, headings, rows


def cells(page: str) -> dict[str, list[str]]:
    """The rows of a page by what their first cell holds in backticks, or at all."""
    return {row[0].strip("`"): row for row in rows(TEXTS[page])}


# ----------------------------------------------------------------------- settings and profiles


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


# -------------------------------------------------------------------------- words and refusals

WORDS = (
    *("key", "tenant", "operation", "scope", "record id", "fingerprint", "record", "attempt"),
    *("claim", "lease", "fence", "complete", "release", "replay", "in flight", "mismatch"),
    *("unknown", "step", "retention", "sweep", "recover", "profile"),
    *("intent", "journal", "settle", "inbox", "outbox"),
)


@pytest.mark.parametrize("word", WORDS)
def test_every_word_is_explained(word: str) -> None:
    assert f"\n**{word}**: " in TEXTS["docs/words.md"]


@pytest.mark.parametrize("kind", Kind)
def test_every_refusal_has_its_section_and_a_true_example(kind: Kind) -> None:
    [section] = re.findall(rf"^### {kind}\n(.*?)(?=^##|\Z)", TEXTS["docs/words.md"], re.M | re.S)
    [example] = [json.loads(block) for block in blocks(section, "json")]
    wait_s, fields = example.get("retry_after_s"), tuple(example.get("fields", ()))
    problem = Problem(kind, example["detail"], example["retryable"], wait_s, fields)

    assert example == as_json(problem, PROFILES["oncekey"].status(kind))
    assert "**Who acts:**" in section
    assert "**Retry?**" in section


# ------------------------------------------------------------------------------------- headers


def header_names() -> set[str]:
    """Every header that some profile reads or writes."""
    answer, names = Answer(400, ((b"x-request-id", b"1"),), b""), {"idempotency-stored"}
    for profile in PROFILES.values():
        for read in (profile.key_in, profile.first_sent_in, profile.target_in):
            names |= {read.name} if isinstance(read, Header) else set()
        lines = first_headers(answer, profile, "k", 0.0) + replay_headers(answer, profile, "k", 0.0)
        for kind in Kind:
            problem = Problem(kind, "", retryable=True, retry_after_s=1.0, location=b"/")
            lines += render(problem, profile).headers
        names |= {name.decode() for name, _ in lines}
    return {name.lower() for name in names} - {"x-request-id"}


@pytest.mark.parametrize("name", sorted(header_names()))
def test_every_header_is_documented(name: str) -> None:
    assert name in {first.lower() for first in cells("docs/headers.md")}


# ------------------------------------------------------------------------- stores and handlers


@pytest.mark.parametrize("scheme", [scheme for kind in KINDS for scheme in kind.schemes])
def test_every_store_is_documented(scheme: str) -> None:
    assert f"`{scheme}://" in TEXTS["docs/stores.md"]


OPTIONS = {
    "timeout_s",
    "synchronous",
    *postgres_connection._OWN,
    *redis_store._OPTIONS,
    *store._OPTIONS,
}


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_of_a_store_is_documented(name: str) -> None:
    assert name in cells("docs/stores.md")


ATTEMPT = {name for name in dir(Attempt) if not name.startswith("_")}
FOR_THE_ENGINE = {
    *("asks", "claim", "claimed_at", "created_id", "doubted", "finished", "give_back"),
    *("handed", "held", "lease", "loan", "mark_lost", "outer", "policy", "ports", "recorded"),
    *("steps", "still_running", "verdict"),
}
AS_IN_THE_POLICY = {"lease_s", "retention_s"}


@pytest.mark.parametrize("name", sorted(ATTEMPT - FOR_THE_ENGINE - AS_IN_THE_POLICY))
def test_everything_that_a_handler_may_ask_is_documented(name: str) -> None:
    assert re.search(rf"`{name}(\(.*?\))?`", TEXTS["docs/handlers.md"])


@pytest.mark.parametrize("probe", PROBES)
def test_every_probe_is_documented(probe: str) -> None:
    assert f"`{probe}`" in TEXTS["docs/testing.md"]
