"""A rolling deployment: this release works with what 0.1 has left, and 0.1 with what it writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import oncekey
from oncekey.core.op import run
from oncekey.core.record import Answer, State, Step
from oncekey.core.verbs import (
    AppendStep,
    Done,
    Due,
    Find,
    Insert,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Sweep,
)
from oncekey.errors import StoreUnavailable, StoreUnfit
from oncekey.stores.sql import migrations
from oncekey.testing.contract import Case
from oncekey.testing.contract.subject import owner
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.releases.conftest import OldRelease, Site, expected
from tests.releases.plain import plain_record, plain_steps
from tests.web.client import ask_wsgi

pytestmark = pytest.mark.slow

REQUEST = b"POST /orders"
DAY_S = 86_400.0


@pytest.fixture
def case(left: Site) -> Iterator[Case]:
    """What 0.1 has left, migrated."""
    left.migrate()
    with left.case() as case:
        yield case


@pytest.fixture
def kept(left: Site) -> dict[str, bytes]:
    """The ids of what 0.1 has left, by their keys."""
    records = expected(left.name)["records"]
    return {key: bytes.fromhex(read["record"]["id"]) for key, read in records.items()}


# ------------------------------------------------------------------------- what 0.1 has left


def test_every_record_is_read_as_it_was(left: Site, case: Case, kept: dict[str, bytes]) -> None:
    for key, read in expected(left.name)["records"].items():
        assert plain_record(case.find(kept[key])) == read["record"], key
        assert plain_steps(case.ask(Steps(kept[key]))) == read["steps"], key
        assert case.ask(Requested(kept[key])) is None, key
    assert {record.id for record in case.ask(Scan(100))} == set(kept.values())


def test_what_was_answered_is_answered_the_same(left: Site) -> None:
    left.migrate()

    def app(environ: Any, start_response: Any) -> list[bytes]:
        raise AssertionError("it has run before the deployment")

    policy = oncekey.Policy(field_digests=True)
    middleware = IdempotencyMiddleware(
        app, store=left.store, tenant=oncekey.single_tenant, policy=policy
    )
    with closing(middleware):
        reply = ask_wsgi(middleware, "served", {"note": "blue", "amount": 5})
        assert (reply.status, reply.body, reply.replayed) == (201, b"order 7", True)
        assert reply.header("location") == "/orders/7"
        other = ask_wsgi(middleware, "served", {"note": "blue", "amount": 6})
        assert (other.status, other.json()["fields"]) == (422, ["amount"])


def test_what_runs_is_finished_by_its_owner(case: Case, kept: dict[str, bytes]) -> None:
    for key in ("running", "taken over", "lapsed, rerun"):
        record = case.find(kept[key])
        step = Step("mail", b"d", b"sent")
        assert isinstance(case.ask(AppendStep(*vars_of(record), step)), Done)
        names = [step.name for step in case.ask(Steps(record.id))]
        assert names == ["charge", "mail"]
        case.done(case.renew(record))
        answer = Answer(201, ((b"x", b"1"),), b"new")
        assert case.done(case.complete(record, answer)).answer == answer


def test_what_lapsed_is_abandoned_and_taken_over(case: Case, kept: dict[str, bytes]) -> None:
    [abandoned] = case.ask(Due(10, abandoned=True))
    assert abandoned == kept["lapsed, block"]
    assert set(case.ask(Due(10))) == {
        kept["lapsed, block"],
        kept["lapsed, rerun"],
        kept["expired"],
    }
    found = case.find(abandoned)
    taken = case.done(case.take(found, recovery="resume", request=REQUEST))
    assert (taken.attempt, taken.lapses) == (2, 1)
    assert case.ask(Requested(abandoned)) == REQUEST
    assert len(case.ask(Steps(abandoned))) == 2
    assert isinstance(case.ask(case.complete(found)), Refused)


def test_everything_else_goes_on_too(case: Case, kept: dict[str, bytes]) -> None:
    """Run again, start over, resolve, doubt; each as if this release had written the record."""
    for key in ("released", "released, no effect", "expired"):
        found = case.find(kept[key])
        again = case.done(case.take(found, request=REQUEST))
        assert again.fence > found.fence
        assert case.ask(Requested(found.id)) == REQUEST
        assert case.done(case.complete(again)).state is State.COMPLETED
    case.done(case.resolve(case.find(kept["unknown"])))
    case.done(case.doubt(case.find(kept["lapsed, rerun"])))
    assert case.ask(Purge("leaving", 10)) == 0
    assert case.ask(Purge("acct_1", 100)) > 0
    case.elapse(2 * DAY_S)
    case.ask(Sweep(100))
    assert [case.ask(Find(record_id)) for record_id in kept.values()] == [None] * len(kept)


def vars_of(record: Any) -> tuple[bytes, int, bytes]:
    held = owner(record)
    return held.id, held.fence, held.token


# ------------------------------------------------------------------------------- migrations


def test_the_order_of_a_deployment_is_told(left: Site) -> None:
    """First migrate, then the new code. What can migrate by itself does."""
    if left.name == "postgres":
        refused = pytest.raises(StoreUnfit, match=r"schema 1: .* Run `oncekey migrate")
        with closing(left.store.connect()) as connection, refused:
            run(left.store.prepare(), connection.ask)
        names = [f"{each.number:04}_{each.name}" for each in migrations("postgres")]
        assert left.migrate() == names[1:]
    with closing(left.store.connect()) as connection:
        run(left.store.prepare(), connection.ask)
    assert left.migrate() == []


@pytest.mark.parametrize("left", ["postgres"], indirect=True)
def test_a_migration_does_not_queue_others_behind_a_long_transaction(left: Site) -> None:
    with psycopg.connect(left.url.partition("?")[0]) as somebody:
        somebody.execute("SELECT * FROM oncekey_claims FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="then migrate again"):
            left.migrate()
        somebody.rollback()
        assert left.migrate() != []


# ----------------------------------------------------------------- 0.1 beside this release


def test_the_old_release_reads_all_that_this_one_writes(shared: Site, old: OldRelease) -> None:
    with shared.case() as case:
        for state in State:
            claim = case.claim(
                key=f"is {state}", recovery="resume", field_digests={"a": "b"}, request=REQUEST
            )
            case.stage(state, claim)
        record = case.begin(case.claim(key="steps", request=REQUEST))
        case.ask(AppendStep(*vars_of(record), Step("charge", b"d", b"r")))
        everything = [plain_record(case.find(found.id)) for found in case.ask(Scan(100))]
        assert len(everything) == len(State) + 1
        for read in everything:
            assert read is not None
            assert old.ask("find", read["id"]) == read
        assert old.ask("steps", record.id.hex()) == plain_steps(case.ask(Steps(record.id)))
        assert [each["id"] for each in old.ask("scan")] == [
            each["id"] for each in everything if each
        ]


def test_each_finishes_what_the_other_began(shared: Site, old: OldRelease) -> None:
    with shared.case() as case:
        theirs = bytes.fromhex(old.ask("begin", "theirs"))
        ours = case.begin(case.claim(key="ours", recovery="resume", request=REQUEST)).id
        for record_id in (theirs, ours):
            assert old.ask("keep_step", record_id.hex(), "charge", "ch_1") == "Done"
            assert old.ask("renew", record_id.hex()) == "Done"
        assert case.ask(Requested(ours)) == REQUEST
        assert old.ask("complete", ours.hex(), "from 0.1") == "Done"
        case.done(case.complete(case.find(theirs), Answer(201, (), b"from now")))
        assert case.find(ours).answer == Answer(201, ((b"x-from", b"0.1"),), b"from 0.1")
        assert old.ask("find", theirs.hex())["answer"] == [201, [], b"from now".hex()]
        assert case.ask(Requested(ours)) is None


def test_each_takes_over_from_the_other_and_is_fenced_off(shared: Site, old: OldRelease) -> None:
    with shared.case() as case:
        record = case.begin(case.claim(recovery="resume", request=REQUEST))
        case.lapse()
        assert old.ask("take", record.id.hex(), "order-17") == "Done"
        # That request came with a claim that does not run any more.
        assert case.ask(Requested(record.id)) is None
        assert isinstance(case.ask(case.complete(record)), Refused)
        case.lapse()
        taken = case.done(case.take(case.find(record.id), recovery="resume", request=REQUEST))
        assert (taken.attempt, taken.lapses) == (3, 2)
        assert case.ask(Requested(record.id)) == REQUEST
        case.lapse()
        assert case.ask(Due(10, abandoned=True)) == [record.id]
        assert old.ask("take", record.id.hex(), "order-17") == "Done"
        case.lapse()  # a retry runs again what is taken over by a claim that says so
        assert case.ask(Due(10, abandoned=True)) == []


def test_a_request_never_comes_back_with_another_attempt(shared: Site, old: OldRelease) -> None:
    """0.1 does not know of it, and cannot forget it itself."""
    with shared.case() as case:
        record = case.begin(case.claim(recovery="block", request=REQUEST))
        case.lapse()
        assert old.ask("doubt", record.id.hex()) == "Done"
        assert case.ask(Requested(record.id)) is None
        assert case.ask(Due(10, abandoned=True)) == []
        case.done(case.resolve(case.find(record.id), None))
        assert old.ask("take", record.id.hex(), "order-17") == "Done"
        assert case.ask(Requested(record.id)) is None
        case.expire()
        assert old.ask("take", record.id.hex(), "order-18") == "Done"
        assert case.ask(Requested(record.id)) is None


def test_what_the_old_release_sweeps_leaves_nothing(shared: Site, old: OldRelease) -> None:
    with shared.case() as case:
        record = case.begin(case.claim(recovery="resume", request=REQUEST))
        case.expire()
        assert old.ask("sweep") == 1
        assert case.ask(Due(10, abandoned=True)) == []
        case.ask(Insert(case.rival(record)))
        assert case.ask(Requested(record.id)) is None
        if shared.name == "sqlite":
            with closing(sqlite3.connect(shared.url.removeprefix("sqlite:///"))) as db:
                assert db.execute("SELECT count(*) FROM oncekey_requests").fetchone() == (0,)


def test_what_the_old_release_purges_is_blank(shared: Site, old: OldRelease) -> None:
    with shared.case() as case:
        record = case.begin(case.claim(tenant="leaving", request=REQUEST))
        case.done(case.complete(record))
        assert old.ask("purge", "leaving") == 1
        assert case.find(record.id).key == ""
        assert case.ask(Purge("leaving", 10)) == 0
