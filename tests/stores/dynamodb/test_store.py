"""What DynamoDB can do to records beyond the contract: large ones in parts, and lost responses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import pytest

from oncekey import open_store
from oncekey._core.op import run
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Find,
    Found,
    Insert,
    Inserted,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Sweep,
    Verb,
)
from oncekey.errors import CorruptRecord, Misuse, StoreError, StoreUnavailable, StoreUnfit, TooLong
from oncekey.stores.dynamodb.connection import DynamoConnection
from oncekey.stores.dynamodb.items import HEADERS_BYTES_MAX, INLINE_BYTES_MAX
from oncekey.stores.dynamodb.parts import REQUEST_BYTES_MAX, STEP_BYTES_MAX
from oncekey.stores.dynamodb.statements import ApiCall
from oncekey.stores.dynamodb.store import open_url
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES, Face
from tests.servers.ministack import table_url
from tests.servers.process import free_port
from tests.stores.dynamodb import kit
from tests.stores.dynamodb.cases import Look, case, items, record_of
from tests.stores.wire import Wire

__all__ = ["case", "items"]

pytestmark = pytest.mark.slow
LARGE = bytes(range(256)) * 4096


# ------------------------------------------------------------------------------------- what is kept


def test_garbage_is_left_to_the_time_to_live(case: Case, items: Look) -> None:
    for state in State:
        item = record_of(items(case.stage(state).id))
        assert int(item["ttl"]["N"]) == int(item["expires"]["N"]) // 1_000_000 + 1


def test_p10_what_has_parts_is_kept_from_the_time_to_live(case: Case, items: Look) -> None:
    """Otherwise its steps would stay behind: only a number is a time to live."""
    stepped, asked = case.begin(), case.begin(case.claim(request=b"POST"))
    case.ask(AppendStep(stepped.id, stepped.fence, stepped.token, Step("charge", b"d", b"r")))
    case.done(case.release(stepped))
    for record in (stepped, asked):
        assert "N" not in record_of(items(record.id))["ttl"]
    case.expire()
    assert case.ask(Sweep(10)) == 2
    assert items(stepped.id) == items(asked.id) == []


def test_p10_expired_but_not_yet_removed_is_as_good_as_gone(case: Case) -> None:
    """The time to live may be days late: reads check the expiry."""
    record = case.stage(State.COMPLETED)
    case.expire()
    found = case.ask(Insert(case.rival(record)))
    assert isinstance(found, Found)
    assert found.record.expired
    assert case.done(case.take(found.record)).attempt == 1


@pytest.mark.parametrize("request_bytes", [None, b"POST /orders"], ids=["alone", "with-parts"])
def test_p10_what_starts_over_before_its_removal_stays(
    case: Case, request_bytes: bytes | None
) -> None:
    """A sweep has found it expired, and removes it a moment later."""
    store = case.subject.store
    record = case.begin(case.claim(request=request_bytes))
    case.expire()
    again: list[Record] = []

    with closing(store.connect()) as connection:

        def ask(question: Any) -> Any:
            if question[0].method in ("delete_item", "transact_write_items") and not again:
                take = case.take(case.find(record.id), request=request_bytes)
                again.append(case.done(take))
            return connection.ask(question)

        assert run(store.perform([Sweep(10)]), ask) == [0]
    case.same(case.find(record.id), again[0])
    assert case.ask(Requested(record.id)) == request_bytes


def test_starting_over_leaves_no_part_behind(case: Case, items: Look) -> None:
    record = case.begin(case.claim(request=b"POST"))
    case.ask(AppendStep(record.id, record.fence, record.token, Step("charge", b"d", b"r")))
    case.done(case.complete(record))
    assert [item["part"]["B"][:1] for item in items(record.id)] == [b"r", b"s"]
    case.expire()
    case.done(case.take(case.find(record.id)))
    assert [item["part"]["B"] for item in items(record.id)] == [b"r"]


def test_a_large_body_is_in_pieces_that_go_by_themselves(case: Case, items: Look) -> None:
    record = case.done(case.complete(case.begin(), Answer(200, (), LARGE)))
    pieces = [item for item in items(record.id) if item["part"]["B"][:1] == b"b"]
    assert b"".join(piece["data"]["B"] for piece in pieces) == LARGE
    expires = int(record_of(items(record.id))["expires"]["N"]) / 1_000_000
    assert all(int(piece["ttl"]["N"]) > expires for piece in pieces)
    assert case.ask(Purge("acct_1", 10)) == 1
    assert [item["part"]["B"] for item in items(record.id)] == [b"r"]


def test_p3_a_late_completion_changes_no_piece_of_a_large_body(case: Case) -> None:
    record = case.begin()
    kept = Answer(200, (), LARGE)
    case.done(case.complete(record, kept))
    for late in (LARGE[::-1], LARGE + b"x", LARGE[: INLINE_BYTES_MAX + 1]):
        outcome = case.ask(case.complete(record, Answer(200, (), late)))
        assert isinstance(outcome, Refused)
        assert outcome.record is not None
        assert outcome.record.answer == kept
    assert case.find(record.id).answer == kept


def test_p3_a_late_completion_does_not_let_pieces_die_sooner(case: Case, items: Look) -> None:
    """The same body, from an attempt with a shorter retention."""
    record, kept = case.begin(), Answer(200, (), LARGE)
    case.done(case.complete(record, kept))
    before = items(record.id)
    assert isinstance(case.ask(replace(case.complete(record, kept), retention_s=1.0)), Refused)
    assert items(record.id) == before


def _meanwhile(case: Case, verb: Any, then: Callable[[], Any]) -> Any:
    """Return the outcome of a verb, with something else happening before it removes leftovers."""
    store, waiting = case.subject.store, [then]
    with closing(store.connect()) as connection:

        def ask(question: Any) -> Any:
            if question[0].method == "query" and waiting:
                waiting.pop()()
            return connection.ask(question)

        [outcome] = run(store.perform([verb]), ask)
    assert not waiting
    return outcome


def test_p2_whoever_gave_a_record_back_does_not_remove_the_next_ones_request(case: Case) -> None:
    record = case.begin(case.claim(request=b"first"))

    def retry() -> None:
        case.done(case.take(case.find(record.id), request=b"second"))

    assert _meanwhile(case, case.release(record), retry) == Done(record.fence)
    assert case.ask(Requested(record.id)) == b"second"


def test_p2_whoever_started_over_does_not_remove_the_next_ones_steps(case: Case) -> None:
    record = case.begin(case.claim(request=b"first"))
    step = Step("charge", b"d", b"r")
    case.ask(AppendStep(record.id, record.fence, record.token, step))
    case.expire()
    start_over = case.take(case.find(record.id), request=b"second")

    def start_over_again() -> None:
        case.expire()
        found = case.find(record.id)
        newest = case.done(case.take(found, request=b"third"))
        case.ask(AppendStep(record.id, newest.fence, newest.token, step))

    assert isinstance(_meanwhile(case, start_over, start_over_again), Done)
    assert case.ask(Steps(record.id)) == [step]
    assert case.ask(Requested(record.id)) == b"third"


def test_p2_a_purge_does_not_remove_the_request_of_who_runs_again(case: Case) -> None:
    record = case.begin(case.claim(tenant="leaving", request=b"first"))
    case.done(case.release(record))
    ran: list[Record] = []

    def run_again(question: Any) -> Any:
        shown = question[0].parameters.get("ExpressionAttributeValues", {})
        if shown.get(":kind") == {"B": b"q"} and not ran:
            ran.append(case.done(case.take(case.find(record.id), request=b"second")))
        with closing(case.subject.store.connect()) as connection:
            return connection.ask(question)

    assert run(case.subject.store.perform([Purge("leaving", 10)]), run_again) == [0]
    assert ran
    assert case.ask(Requested(record.id)) == b"second"


def test_p11_a_purge_reads_no_more_of_a_tenant_than_it_blanks(case: Case) -> None:
    """In pages of one record here, of a megabyte in production."""
    ids = [bytes([number]) * 31 + b"\x00" for number in range(1, 5)]
    for record_id in ids:
        case.stage(State.COMPLETED, case.claim(id=record_id, tenant="one shard"))
    read = []

    with closing(case.subject.store.connect()) as connection:

        def ask(question: Any) -> Any:
            if question[0].method == "query" and question[0].parameters.get("IndexName"):
                call = ApiCall("query", {**question[0].parameters, "Limit": 1})
                answers = connection.ask([call])
                read.extend(answers[0]["Items"])
                return answers
            return connection.ask(question)

        assert run(case.subject.store.perform([Purge("one shard", 2)]), ask) == [2]
        assert len(read) == 2
        assert run(case.subject.store.perform([Purge("one shard", 10)]), ask) == [2]
    assert {record.key for record in case.ask(Scan(10, tenant="one shard"))} == {""}


def test_a_body_that_lost_a_piece_is_not_guessed_at(case: Case, dynamodb_url: str) -> None:
    record = case.done(case.complete(case.begin(), Answer(200, (), LARGE)))
    direct, name = kit.client(dynamodb_url), kit.name_of(dynamodb_url)
    item = direct.get_item(
        TableName=name, Key={"id": {"B": record.id}, "part": {"B": b"r"}}, ConsistentRead=True
    )["Item"]
    part = b"b" + item["body_digest"]["B"] + b"\x00\x01"
    direct.delete_item(TableName=name, Key={"id": {"B": record.id}, "part": {"B": part}})
    with pytest.raises(CorruptRecord, match="missing"):
        case.ask(Find(record.id))


def test_a_client_that_its_last_user_leaves_is_not_given_to_the_next(dynamodb_url: str) -> None:
    store = open_url(dynamodb_url)
    last = store.connect()
    leaving = threading.Thread(target=last.close)

    class Users(WeakSet[DynamoConnection]):
        def add(self, item: DynamoConnection) -> None:
            leaving.start()
            leaving.join(0.2)  # in between, if possible
            super().add(item)

    last._shared.users = Users()
    with closing(store.connect()) as connection:
        leaving.join()
        assert connection._shared.threads.submit(int).result() == 0


def test_what_is_too_large_to_keep_is_refused_before_it_is_sent(case: Case) -> None:
    with pytest.raises(StoreError, match="request_kept_bytes_max"):
        case.ask(Insert(case.claim(request=bytes(REQUEST_BYTES_MAX + 1))))
    record = case.begin()
    step = Step("fetch", b"d", bytes(STEP_BYTES_MAX + 1))
    with pytest.raises(StoreError, match="store a reference"):
        case.ask(AppendStep(record.id, record.fence, record.token, step))
    with pytest.raises(TooLong, match="headers of a response"):
        case.ask(case.complete(record, Answer(200, ((b"x", bytes(HEADERS_BYTES_MAX)),), b"")))
    case.same(case.find(record.id), record)


def test_an_item_that_something_else_wrote_is_not_guessed_at(case: Case, dynamodb_url: str) -> None:
    record = case.begin()
    kit.client(dynamodb_url).put_item(
        TableName=kit.name_of(dynamodb_url),
        Item={"id": {"B": record.id}, "part": {"B": b"r"}, "state": {"S": "running"}},
    )
    with pytest.raises(CorruptRecord, match="something other than oncekey"):
        case.ask(Find(record.id))


# ------------------------------------------------------------------------------------- lost answers

TRANSACTIONS: dict[str, Callable[[Case], Verb]] = {
    "insert with a request": lambda case: Insert(case.claim(request=b"POST /orders")),
    "insert with a long request": lambda case: Insert(case.claim(request=LARGE)),
    "step": lambda case: _step(case.begin()),
    "long step": lambda case: _step(case.begin(), LARGE),
}


def _step(record: Record, result: bytes = b"r") -> AppendStep:
    return AppendStep(record.id, record.fence, record.token, Step("charge", b"d", result))


CUTS: dict[str, Callable[[Wire], None]] = {
    "before it was carried out": Wire.cut_at_next_question,
    "after it was carried out": Wire.cut_at_next_reply,
}


@pytest.fixture(params=list(FACES))
def cut(
    request: pytest.FixtureRequest, dynamodb: Subject, dynamodb_url: str
) -> Iterator[tuple[Case, Wire]]:
    """The same store, behind a proxy that breaks connections on command."""
    endpoint = kit.endpoint_of(dynamodb_url)
    with Wire(int(endpoint.rpartition(":")[2])) as wire:
        url = table_url(f"http://127.0.0.1:{wire.port}", kit.name_of(dynamodb_url))
        subject = kit.subject(url)
        face: Face = FACES[request.param](subject.store)
        case = Case(subject, face)
        assert case.ask(Count()) == dict.fromkeys(State, 0)  # connect and check first
        yield case, wire
        face.close()


@pytest.mark.parametrize("when", CUTS)
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_p9_a_transaction_whose_answer_was_lost_is_asked_for_again_at_once(
    cut: tuple[Case, Wire], name: str, when: str
) -> None:
    """DynamoDB recognises its token; other lost responses are reported to the caller."""
    case, wire = cut
    verb = TRANSACTIONS[name](case)
    CUTS[when](wire)
    assert isinstance(case.ask(verb), Inserted | Done)
    assert wire.cuts == 1


@pytest.mark.parametrize("when", CUTS)
def test_what_closed_a_connection_is_told(cut: tuple[Case, Wire], when: str) -> None:
    case, wire = cut
    CUTS[when](wire)
    with pytest.raises(StoreUnavailable, match=r"reset|aborted|disconnected|Broken pipe") as lost:
        case.ask(Find(b"any"))
    assert lost.value.sent


def test_what_cannot_be_reached_was_not_sent(dynamodb_url: str) -> None:
    name = kit.name_of(dynamodb_url)
    for make_face in FACES.values():
        store = open_url(table_url(f"http://127.0.0.1:{free_port()}", name))
        face: Face = make_face(store)
        with pytest.raises(StoreUnavailable) as lost:
            face.ask(Find(b"any"))
        assert not lost.value.sent
        face.close()


# ------------------------------------------------------------------------------------- addresses


def test_addresses_say_where_the_table_is() -> None:
    store = open_store("dynamodb://AKIA:a%2Fb@my.Table_1?region=eu-central-1&timeout_s=2")
    assert repr(store) == "DynamoStore('dynamodb://my.Table_1?region=eu-central-1')"
    assert store.durability.power_loss
    elsewhere = open_store("dynamodb://t?endpoint=http://127.0.0.1:1")
    assert not elsewhere.durability.store_crash


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://key@table",
        "dynamodb://table/extra",
        "dynamodb://table?colour=red",
        "dynamodb://table?allow=anything",
        "dynamodb://table?timeout_s=soon",
    ],
)
def test_addresses_that_say_nothing(url: str) -> None:
    with pytest.raises(Misuse):
        open_store(url)


@pytest.mark.parametrize(
    ("place", "wanted"),
    [
        ("?region=us-east-1&", r"credentials\. .* as dynamodb://key:secret@table"),
        ("?", r"region\. Name it as dynamodb://table\?region=eu-central-1"),
    ],
    ids=["credentials", "region"],
)
def test_what_only_the_environment_can_tell_is_asked_for(
    dynamodb_endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, place: str, wanted: str
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = open_url(f"dynamodb://any{place}endpoint={dynamodb_endpoint}")
    for make_face in FACES.values():
        face: Face = make_face(store)
        with pytest.raises(StoreUnfit, match=wanted):
            face.ask(Find(b"any"))
        face.close()
