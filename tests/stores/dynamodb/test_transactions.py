"""A caller's own writes and the completion in one DynamoDB transaction."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

import oncekey
from oncekey._core.record import State
from oncekey._core.verbs import Find, Insert, Requested
from oncekey._engine.runtime import Runtime
from oncekey.errors import LeaseLost, Misuse
from oncekey.stores import transactions
from oncekey.stores.dynamodb.transactions import ITEMS_MAX
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace
from oncekey.web.asgi import IdempotencyMiddleware
from oncekey.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.servers.ministack import table_url
from tests.stores.dynamodb import kit
from tests.stores.wire import Wire
from tests.web.client import ask, ask_wsgi

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def orders(dynamodb_endpoint: str, dynamodb_url: str) -> Iterator[str]:
    """The caller's own table."""
    name, direct = f"orders-{uuid.uuid4().hex}", kit.client(dynamodb_url)
    direct.create_table(
        TableName=name,
        AttributeDefinitions=[{"AttributeName": "number", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "number", "KeyType": "HASH"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield name
    direct.delete_table(TableName=name)


@pytest.fixture
def case(dynamodb: Subject) -> Iterator[Case]:
    face = SyncFace(dynamodb.store)
    yield Case(dynamodb, face)
    face.close()


def order(table: str, number: str) -> dict[str, Any]:
    new = {"TableName": table, "Item": {"number": {"S": number}}}
    return {"Put": {**new, "ConditionExpression": "attribute_not_exists(#n)", **_NAMES}}


_NAMES = {"ExpressionAttributeNames": {"#n": "number"}}


def kept(url: str, table: str, number: str) -> bool:
    read = kit.client(url).get_item(
        TableName=table, Key={"number": {"S": number}}, ConsistentRead=True
    )
    return "Item" in read


def perform(colour: str, store: Any, items: list[Any], verb: Any) -> Any:
    if colour == "sync":
        [outcome] = transactions.perform(store, items, [verb])
    else:
        [outcome] = asyncio.run(transactions.aperform(store, items, [verb]))
    return outcome


COLOURS = pytest.mark.parametrize("colour", ["sync", "async"])


@COLOURS
def test_all_is_written_or_nothing(case: Case, dynamodb_url: str, orders: str, colour: str) -> None:
    record, number = case.begin(case.claim(request=b"POST")), uuid.uuid4().hex
    done = perform(colour, case.subject.store, [order(orders, number)], case.complete(record))
    assert done.fence == record.fence
    assert case.find(record.id).state is State.COMPLETED
    assert kept(dynamodb_url, orders, number)
    assert case.ask(Requested(record.id)) is None


@COLOURS
def test_p2_who_lost_its_record_writes_nothing_of_its_own_either(
    case: Case, dynamodb_url: str, orders: str, colour: str
) -> None:
    record, number = case.begin(), uuid.uuid4().hex
    case.lapse()
    taken = case.done(case.take(record))
    refused = perform(colour, case.subject.store, [order(orders, number)], case.complete(record))
    case.same(refused.record, taken)
    assert not kept(dynamodb_url, orders, number)


@COLOURS
def test_a_condition_of_the_callers_leaves_the_record_running(
    case: Case, dynamodb_url: str, orders: str, colour: str
) -> None:
    """The driver's error is raised, with each reason in the order of the items."""
    record, taken, fresh = case.begin(), uuid.uuid4().hex, uuid.uuid4().hex
    first = case.begin()
    perform(colour, case.subject.store, [order(orders, taken)], case.complete(first))
    items = [order(orders, fresh), order(orders, taken)]
    with pytest.raises(ClientError) as refused:
        perform(colour, case.subject.store, items, case.complete(record))
    codes = [reason["Code"] for reason in refused.value.response["CancellationReasons"]]
    assert codes[:2] == ["None", "ConditionalCheckFailed"]
    case.same(case.find(record.id), record)
    assert not kept(dynamodb_url, orders, fresh)
    assert case.done(case.release(record)).state is State.RELEASED


@COLOURS
@pytest.mark.parametrize("cut", [Wire.cut_at_next_question, Wire.cut_at_next_reply])
def test_p9_a_lost_answer_is_asked_for_again_and_nothing_is_written_twice(
    case: Case, dynamodb_url: str, orders: str, colour: str, cut: Any
) -> None:
    record, number = case.begin(), uuid.uuid4().hex
    port = int(kit.endpoint_of(dynamodb_url).rpartition(":")[2])
    with Wire(port) as wire:
        url = table_url(f"http://127.0.0.1:{wire.port}", kit.name_of(dynamodb_url))
        store = kit.subject(url).store
        face = SyncFace(store)
        assert face.ask(Find(record.id)) is not None
        cut(wire)
        done = perform(colour, store, [order(orders, number)], case.complete(record))
        face.close()
        assert wire.cuts == 1
    assert done.fence == record.fence
    assert case.find(record.id).state is State.COMPLETED
    assert kept(dynamodb_url, orders, number)


def test_what_cannot_be_joined_is_told(case: Case, orders: str) -> None:
    record, store = case.begin(), case.subject.store
    wrong: list[Any] = [
        object(),
        "INSERT",
        [{"Scan": {}}],
        [1],
        [order(orders, str(n)) for n in range(ITEMS_MAX + 1)],
    ]
    for items in wrong:
        with pytest.raises(Misuse, match="TransactWriteItems"):
            transactions.perform(store, items, [case.complete(record)])
    with pytest.raises(Misuse, match="only a completion"):
        transactions.perform(store, [], [Insert(case.claim())])
    case.same(case.find(record.id), record)


# ------------------------------------------------------------------------------ in a handler


@pytest.fixture
def runtime(dynamodb: Subject) -> Iterator[Runtime]:
    with Runtime(dynamodb.store) as runtime:
        yield runtime


def test_complete_in_a_function(runtime: Runtime, dynamodb_url: str, orders: str) -> None:
    runs: list[str] = []

    @oncekey.once(runtime, key="{number}")
    def place(number: str) -> dict[str, str]:
        runs.append(number)
        oncekey.current().complete_in_sync([order(orders, number)], 201, {"placed": number})
        return {"ignored": "what was recorded counts"}

    number = uuid.uuid4().hex
    assert place(number) == place(number) == {"placed": number}
    assert runs == [number]
    assert kept(dynamodb_url, orders, number)


async def test_complete_in_an_async_function(
    dynamodb: Subject, dynamodb_url: str, orders: str
) -> None:
    async with Runtime(dynamodb.store) as runtime:

        @oncekey.once(runtime, key="{number}")
        async def place(number: str) -> dict[str, str]:
            await oncekey.current().complete_in([order(orders, number)], 201, {"placed": number})
            return {}

        number = uuid.uuid4().hex
        assert await place(number) == {"placed": number}
        assert await place(number) == {"placed": number}
    assert kept(dynamodb_url, orders, number)


def test_p2_complete_in_raises_where_the_record_was_lost(
    runtime: Runtime, case: Case, dynamodb_url: str, orders: str
) -> None:
    @oncekey.once(runtime, key="{number}")
    def place(number: str) -> None:
        attempt = oncekey.current()
        found = case.find(attempt.held.id)
        case.elapse(attempt.lease_s)
        case.done(case.take(found))
        with pytest.raises(LeaseLost):
            attempt.complete_in_sync([order(orders, number)], 201, {})

    number = uuid.uuid4().hex
    with pytest.raises(oncekey.OncekeyError):  # it has another owner now, and still runs
        place(number)
    assert not kept(dynamodb_url, orders, number)


# --------------------------------------------------------------------------- without a key


def responded(start_response: Any, answer: Any) -> list[bytes]:
    start_response(f"{answer.status} Done", [])
    return [answer.body]


def test_without_a_key_the_items_are_written_alone(
    dynamodb: Subject, dynamodb_url: str, orders: str
) -> None:
    def place(environ: Any, start_response: Any) -> list[bytes]:
        items = [order(orders, number)]
        return responded(start_response, oncekey.current().complete_in_sync(items, 201, {"n": 1}))

    app = WsgiMiddleware(place, store=dynamodb.store, tenant=oncekey.single_tenant)
    number = uuid.uuid4().hex
    assert (ask_wsgi(app, None).status, kept(dynamodb_url, orders, number)) == (201, True)
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        ask_wsgi(app, None)
    app.close()


async def test_without_a_key_they_are_written_in_a_loop_too(
    dynamodb: Subject, dynamodb_url: str, orders: str
) -> None:
    async def place(scope: Any, receive: Any, send: Any) -> None:
        answer = await oncekey.current().complete_in([order(orders, number)], 201, {"n": 1})
        with pytest.raises(Misuse, match="cannot be joined"):
            await oncekey.current().complete_in(object(), 201)
        await oncekey.current().complete_in([], 201)
        await send({"type": "http.response.start", "status": answer.status, "headers": []})
        await send({"type": "http.response.body", "body": answer.body})

    app = IdempotencyMiddleware(place, store=dynamodb.store, tenant=oncekey.single_tenant)
    number = uuid.uuid4().hex
    assert (await ask(app, None)).status == 201
    assert kept(dynamodb_url, orders, number)
    await app.close()
