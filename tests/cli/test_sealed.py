"""Commands on a sealed store, its secrets, and the amnesia guard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from oncekey import open_store
from oncekey.stores.urls import Unsealed
from tests.cli.conftest import OPERATION, TENANT, Oncekey, Seed
from tests.servers.process import free_port
from tests.stores.sealed.kit import SECOND, SECRET, prepare

KEY = "order-17"


@pytest.fixture
def sealed(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Seed]:
    """Writes into a sealed store, whose secrets are in the environment."""
    monkeypatch.setenv("ONCEKEY_SECRETS", SECRET)
    seed = Seed(open_store(url, secrets=SECRET))
    yield seed
    seed.close()


def test_who_knows_the_key_is_shown_everything(oncekey: Oncekey, sealed: Seed) -> None:
    sealed.completed(KEY)
    words = ("--tenant", TENANT, "--operation", OPERATION, "--key", KEY)
    shown = oncekey("show", "--json", "--body", "--show-keys", *words).json
    assert (shown["key"], shown["tenant"], shown["status"]) == (KEY, TENANT, 201)
    assert shown["answer"]["body"] == '{"secret": "1234"}'


def test_a_list_shows_neither_keys_nor_tenants(oncekey: Oncekey, sealed: Seed) -> None:
    sealed.completed(KEY)
    listed = oncekey("list", "--show-keys")
    assert "(sealed)" in listed.out
    assert OPERATION in listed.out
    assert TENANT not in listed.out
    [record] = oncekey("list", "--json").json["records"]
    assert record["key_hash"] is None
    shown = oncekey("show", "--id", record["id"][:12], "--body")
    assert "status 201, without its body" in shown.out
    assert "1234" not in shown.out
    assert "1 record" in oncekey("purge", "--tenant", TENANT).out


def test_an_unknown_outcome_is_resolved_by_the_id_that_is_shown(
    oncekey: Oncekey, sealed: Seed
) -> None:
    sealed.unknown(KEY)
    [record] = oncekey("list", "--unknown", "--json").json["records"]
    resolved = oncekey(
        *("resolve", record["id"][:16], "--as", "completed", "--status", "201"),
        *("--body", "it was done", "--yes", "--reason", "asked the provider"),
    )
    assert resolved.code == 0, resolved.err
    assert "key (sealed)) as completed with status 201" in resolved.out
    words = ("--tenant", TENANT, "--operation", OPERATION, "--key", KEY)
    assert oncekey("show", "--json", "--body", *words).json["answer"]["body"] == "it was done"


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("show", "--tenant", TENANT, "--key", KEY),
        ("purge", "--tenant", TENANT),
        ("amnesia",),
    ],
)
def test_without_the_secrets_nothing_is_said_to_be_missing(
    oncekey: Oncekey, sealed: Seed, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    sealed.completed(KEY)
    monkeypatch.delenv("ONCEKEY_SECRETS")
    ran = oncekey(*words)
    assert ran.code == 2
    assert "are sealed: set ONCEKEY_SECRETS to the application's secrets" in ran.err
    assert ran.err.count("\n") == 1


def test_a_wrong_secret_is_said_by_its_id_alone(
    oncekey: Oncekey, sealed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed.completed(KEY)
    monkeypatch.setenv("ONCEKEY_SECRETS", SECOND)
    ran = oncekey("list")
    assert ran.code == 2
    assert "none of this process's secrets opens this store" in ran.err
    assert SECOND not in ran.err


# ------------------------------------------------------------------------------------- secrets


def test_secrets_are_shown_by_their_ids_and_forgotten(
    oncekey: Oncekey, sealed: Seed, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed.completed(KEY)
    monkeypatch.setenv("ONCEKEY_SECRETS", f"{SECOND},{SECRET}")
    new, old = oncekey("secrets", "--json").json["secrets"]
    assert [new["role"], old["role"]] == ["seals", "opens"]
    refused = oncekey("secrets", "--forget", old["id"])
    assert refused.code == 2
    assert "remove it from its secrets first" in refused.err
    monkeypatch.setenv("ONCEKEY_SECRETS", SECOND)
    shown = oncekey("secrets")
    assert f"{old['id']}  opens it, not given here" in shown.out
    assert oncekey("secrets", "--forget", old["id"], "--json").json == {"secrets": [new]}
    monkeypatch.setenv("ONCEKEY_SECRETS", SECRET)
    assert "none of this process's secrets opens" in oncekey("secrets").err
    monkeypatch.setenv("ONCEKEY_SECRETS", SECOND)
    for words in (("--forget", old["id"]), ("--forget", "not hex")):
        assert oncekey("secrets", *words).code == 2


def test_a_store_that_is_not_sealed_has_no_secrets(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed(KEY)
    ran = oncekey("secrets")
    assert ran.code == 2
    assert "set ONCEKEY_SECRETS" in ran.err


# ------------------------------------------------------------------------------------- amnesia


@pytest.mark.parametrize("is_sealed", [False, True])
def test_the_guard_is_raised_shown_and_lowered(
    oncekey: Oncekey, url: str, monkeypatch: pytest.MonkeyPatch, is_sealed: bool
) -> None:
    secrets = SECRET if is_sealed else Unsealed.UNSEALED
    if secrets is SECRET:
        monkeypatch.setenv("ONCEKEY_SECRETS", secrets)
        prepare(open_store(url, secrets=secrets))  # type: ignore[arg-type]
    seed = Seed(open_store(url, secrets=secrets))
    seed.completed(KEY)
    seed.close()
    assert oncekey("amnesia").out == "the amnesia guard is not raised\n"
    raised = oncekey("amnesia", "--until", "2026-01-31T12:00:00Z", "--for-s", "7200")
    assert "raised for another 2 h" in raised.out
    assert "after 2026-01-31T12:00:00+00:00 (and 300 s)" in raised.out
    assert "running processes see this within 10 s" in raised.out
    shown = json.loads(oncekey("amnesia", "--json").out)
    assert shown["guard"] == {"until": 1769860800.0, "skew_s": 300.0}
    assert 7100 < shown["ends_in_s"] <= 7200
    assert oncekey("amnesia", "--lower", "--json").json == {"guard": None, "ends_in_s": 0.0}


@pytest.mark.parametrize("secrets", ["", SECRET])
def test_the_guard_is_raised_and_lowered_while_a_cache_is_down(
    oncekey: Oncekey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secrets: str
) -> None:
    """It is the database that has lost something, and nothing of the guard is in a cache."""
    monkeypatch.setenv("ONCEKEY_SECRETS", secrets)
    url = f"tiered+sqlite:///{tmp_path}/keys.db?cache=redis://127.0.0.1:{free_port()}/0"
    for _ in range(2):
        raised = oncekey("amnesia", "--until", "2026-01-31T12:00:00Z", url)
        assert "the amnesia guard is raised" in raised.out
        assert "is not raised" in oncekey("amnesia", "--lower", url).out


@pytest.mark.parametrize(
    "words",
    [
        ("--until", "yesterday"),
        ("--until", "2026-01-31T12:00:00"),
        ("--until", "2026-01-31T12:00:00Z", "--lower"),
        ("--until", "2026-01-31T12:00:00Z", "--for-s", "0"),
    ],
)
def test_what_cannot_be_meant_raises_nothing(
    oncekey: Oncekey, seed: Seed, words: tuple[str, ...]
) -> None:
    seed.completed(KEY)
    assert oncekey("amnesia", *words).code == 2
    assert oncekey("amnesia", "--json").json == {"guard": None, "ends_in_s": 0.0}
