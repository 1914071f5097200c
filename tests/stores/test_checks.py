"""What is unsafe refuses a store, unless it is accepted by its name."""

import pytest

from oncekey.errors import Misuse, StoreUnfit
from oncekey.stores.checks import (
    ACCEPTS,
    Finding,
    Level,
    Risk,
    accept_risks,
    advice,
    parse_risks,
    refuse_unsafe,
    schema,
    unsafe,
)
from oncekey.stores.urls import open_store

FORGETS = unsafe("durability", "fsync = off", "it forgets", "Set fsync = on", Risk.DURABILITY)
STANDBY = unsafe("role", "a standby", "it cannot be written to", "Name the primary")


def test_the_first_unsafe_finding_is_told_with_what_to_do() -> None:
    fine = [Finding("version", "18"), advice("memory", "little", "it gets full", "Buy some")]
    refuse_unsafe(fine, "db://host", ())
    with pytest.raises(StoreUnfit) as refused:
        refuse_unsafe([*fine, FORGETS, STANDBY], "db://host", ())
    assert str(refused.value) == (
        "db://host: fsync = off: it forgets. Set fsync = on, or accept that by adding "
        "allow=unsafe-durability to the URL"
    )


def test_a_name_accepts_what_bears_it_and_nothing_else() -> None:
    assert [found.level for found in accept_risks([FORGETS, STANDBY], [Risk.DURABILITY])] == [
        Level.ACCEPTED,
        Level.UNSAFE,
    ]
    refuse_unsafe([FORGETS], "db://host", [Risk.DURABILITY])
    with pytest.raises(StoreUnfit, match="a standby"):
        refuse_unsafe([FORGETS, STANDBY], "db://host", list(Risk))
    with pytest.raises(StoreUnfit, match="fsync"):
        refuse_unsafe([FORGETS], "db://host", [Risk.EVICTION])


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///keys.db",
        "postgresql://host/keys",
        "mysql://user@host/keys",
        "redis://host/0",
        "dynamodb://table?region=eu-central-1",
    ],
)
def test_in_every_url_an_unknown_name_is_answered_with_those_that_there_are(url: str) -> None:
    with pytest.raises(Misuse, match="allow=anything is not understood: this store knows"):
        open_store(f"{url}{'&' if '?' in url else '?'}allow=anything")


def test_names_are_read_and_each_says_what_it_accepts() -> None:
    known = (Risk.DURABILITY, Risk.EVICTION)
    assert parse_risks(["eviction", "unsafe-durability"], known) == set(known)
    assert parse_risks((), known) == frozenset()
    assert ACCEPTS.keys() == set(Risk)


@pytest.mark.parametrize(
    ("applied", "oldest_reader", "level"),
    [
        (None, None, Level.UNSAFE),
        (2, 1, Level.UNSAFE),
        (3, 1, Level.FINE),
        (9, 3, Level.FINE),
        (9, 4, Level.UNSAFE),
    ],
)
def test_a_schema_is_used_if_this_release_knows_it(
    applied: int | None, oldest_reader: int | None, level: Level
) -> None:
    assert schema(applied, oldest_reader, 3, "db://host").level is level
