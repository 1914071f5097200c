"""A rolling deployment: this release works with what 0.1 has left, and 0.1 with what it writes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

import oncekey
from oncekey._core.op import run
from oncekey._core.record import Answer, State, Step
from oncekey._core.verbs import (
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
from tests.clocks import set_notices
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


def break_one(shared: Site, **policy: Any) -> None:
    """A function of this release that raises after its effect."""
    runtime = oncekey.Runtime(shared.store)

    @oncekey.once(runtime, key="{order}", name="pay", policy=oncekey.Policy(**policy))
    def pay(order: str) -> None:
        raise TimeoutError("the bank did not answer")

    with closing(runtime), pytest.raises(TimeoutError):
        pay("order-17")


@pytest.mark.parametrize("recovery", ["rerun", "block"])
def test_p6_the_old_release_never_runs_what_broke_under_block(
    shared: Site, old: OldRelease, recovery: str
) -> None:
    break_one(shared, recovery="block")
    with shared.case() as case:
        [record] = case.ask(Scan(10))
    assert record.state is State.UNKNOWN
    assert old.ask("decide", record.id.hex(), recovery) == "refuse: outcome unknown"


def test_p6_the_old_release_does_not_run_what_broke_under_ask_if_it_blocks(
    shared: Site, old: OldRelease
) -> None:
    """It knows no `ask`, and goes by its own policy: that must be `block` until it is gone."""
    break_one(shared, recovery="ask", ask=lambda attempt: None)
    with shared.case() as case:
        [record] = case.ask(Scan(10))
        assert (record.state, record.lapsed) == (State.RUNNING, True)
        assert old.ask("find", record.id.hex())["lapsed"]
        assert old.ask("decide", record.id.hex(), "block") == "declare the outcome unknown"
        assert old.ask("decide", record.id.hex(), "rerun") == "run again"
        assert old.ask("doubt", record.id.hex()) == "Done"
        assert case.find(record.id).state is State.UNKNOWN


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


# ------------------------------------------------------------- fingerprints of either release

FORM = "application/x-www-form-urlencoded"
JSON = "application/json"
LONG = b'{"a":"' + b"x" * 1_100_000 + b'"}'
REQUESTS = {
    "json": (
        JSON,
        b'{"a": [1, 2.5, 1e3], "b": "\xc3\xa9"}',
        b'{"b":"\\u00e9","a":[1,2.5,1000]}',
        False,
    ),
    "json, long number": (JSON, b'{"a":1e300}', b'{"a":10e299}', True),
    "json, long": (JSON, LONG, None, True),
    "json, of AWS": ("application/x-amz-json-1.1", b'{"a": 1}', None, True),
    "form": (FORM, b"to=x&amount=5", b"to=%78&amount=5", True),
    "form, of JSON": (FORM, b'{"a":"+1&2"}', None, True),
    "form, long": (FORM, b"a=" + b"x" * 1_100_000, None, True),
    "multipart": (
        "multipart/form-data; boundary=b",
        b"--b\r\nA: 1\r\n\r\nhallo\r\n--b--\r\n",
        None,
        False,
    ),
    "bytes, long": ("application/octet-stream", LONG, None, False),
}
"""The type, the body, another way to write it, and whether this release has another form for it."""


@contextmanager
def serving(site: Site) -> Iterator[IdempotencyMiddleware]:
    def app(environ: Any, start_response: Any) -> list[bytes]:
        start_response("201 Created", [("Content-Type", "text/plain")])
        return [b"of this release"]

    policy = oncekey.Policy(bodies_bytes_max=2**30)
    middleware = IdempotencyMiddleware(
        app, store=site.store, tenant=oncekey.single_tenant, policy=policy
    )
    with closing(middleware):
        yield middleware


def test_e27_what_the_old_release_ran_is_not_run_again(shared: Site, old: OldRelease) -> None:
    """And is not refused: it is compared by the rules of the release that wrote it."""
    with serving(shared) as middleware:
        for name, (content_type, body, other, _) in REQUESTS.items():
            key = re.sub(r"\W", "", name)
            assert old.ask("serve", key, content_type, body.decode("latin-1")) == "ran", key
            for spelling in filter(None, (body, other)):
                again = ask_wsgi(middleware, key, spelling, content_type=content_type)
                assert (again.status, again.body, again.replayed) == (201, b"of 0.1", True), key
            changed = ask_wsgi(middleware, key, body.replace(b"a", b"A"), content_type=content_type)
            assert (changed.status, changed.kind) == (422, "mismatch"), key


def test_e27_what_this_release_ran_the_old_one_refuses_for_now_or_replays(
    shared: Site, old: OldRelease
) -> None:
    with serving(shared) as middleware:
        for name, (content_type, body, _, differs) in REQUESTS.items():
            key = re.sub(r"\W", "", name)
            assert ask_wsgi(middleware, key, body, content_type=content_type).status == 201, key
            response = old.ask("serve", key, content_type, body.decode("latin-1"))
            assert response == ("NEWER" if differs else "REPLAY"), key
            again = ask_wsgi(middleware, key, body, content_type=content_type)
            assert (again.body, again.replayed) == (b"of this release", True), key


def test_p5_e27_a_form_in_another_order_is_compared_by_who_wrote_its_record(
    shared: Site, old: OldRelease
) -> None:
    one, other = b"type=debit&of=x&type=credit", b"of=x&type=debit&type=credit"
    assert old.ask("serve", "k1", FORM, one.decode()) == "ran"
    with serving(shared) as middleware:
        assert ask_wsgi(middleware, "k1", other, content_type=FORM).replayed
        assert ask_wsgi(middleware, "k2", one, content_type=FORM).status == 201
        assert ask_wsgi(middleware, "k2", other, content_type=FORM).kind == "mismatch"


def test_e27_what_the_old_release_has_begun_is_taken_over(shared: Site, old: OldRelease) -> None:
    """A process of 0.1 dies in a form; a retry runs it here, and 0.1 does not run it again."""
    form = b"to=x&amount=5"
    with shared.case() as case, serving(shared) as middleware:
        set_notices(middleware.edge.guard, None)
        assert old.ask("leave", "k1", FORM, form.decode()) == "began"
        assert ask_wsgi(middleware, "k1", form, content_type=FORM).kind == "in-flight"
        case.lapse()
        assert ask_wsgi(middleware, "k1", b"to=y", content_type=FORM).kind == "mismatch"
        assert ask_wsgi(middleware, "k1", form, content_type=FORM).body == b"of this release"
        assert old.ask("serve", "k1", FORM, form.decode()) == "NEWER"
        assert ask_wsgi(middleware, "k1", form, content_type=FORM).replayed
