"""Tables for tests, and stores whose time passes on command."""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import botocore.session

from oncekey._core.op import Op, relay, run
from oncekey._core.verbs import Verb
from oncekey._system.clock import SystemClock
from oncekey.stores.dynamodb.leases import LeaseObserver
from oncekey.stores.dynamodb.server_date import ServerClock
from oncekey.stores.dynamodb.statements import ApiCall
from oncekey.stores.dynamodb.store import DynamoStore, open_url
from oncekey.testing.contract import Subject
from tests.servers.ministack import table_url

_VARIABLE = re.compile(r"[#:]\w+")


class Ahead(SystemClock):
    """The real clock plus a number of seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return SystemClock.monotonic() + self.seconds


class ServerClockAhead(ServerClock):
    """The server's clock plus a number of seconds; it may be set back."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.seconds = 0.0

    def now(self) -> int:
        return super().now() + round(self.seconds * 1_000_000)

    def latest(self) -> int:
        return super().latest() + round(self.seconds * 1_000_000)


def check_amazon_rules(call: ApiCall) -> None:
    """Fail for a call whose expressions omit a variable or use one without a value: Amazon refuses
    such calls, emulators carry them out.
    """
    members = call.parameters.get("TransactItems", [{"": call.parameters}])
    for parameters in (each for member in members for each in member.values()):
        written = [text for name, text in parameters.items() if name.endswith("Expression")]
        given = {
            *parameters.get("ExpressionAttributeNames", {}),
            *parameters.get("ExpressionAttributeValues", {}),
        }
        assert set(_VARIABLE.findall(" ".join(written))) == given, (call.method, written, given)


def _check_calls(calls: list[ApiCall]) -> list[ApiCall]:
    for call in calls:
        check_amazon_rules(call)
    return calls


class AmazonRulesStore(DynamoStore):
    """A store that checks each call against Amazon's rules."""

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        return relay(super().perform(verbs), _check_calls)


def subject(url: str) -> Subject:
    """Return a store that has observed every record it has read for as long as the test says."""
    clock, server_clock = Ahead(), ServerClockAhead()

    def elapse(seconds: float) -> None:
        server_clock.seconds += seconds
        clock.seconds += max(seconds, 0.0)  # a monotonic clock is never set back

    store = open_url(url, clock=clock, server_clock=server_clock)
    store.__class__ = AmazonRulesStore
    return Subject(store, elapse=elapse, observed=True)


def restart_process(subject: Subject) -> None:
    """Make the store look like one of a new process: it has observed nothing yet, and its time is
    now.

    A sweep announces a few lapses at a time: records that were removed directly would come before
    those of the test. And other processes do not share the time that was added here.
    """
    assert isinstance(subject.store, DynamoStore)
    verbs = subject.store._verbs
    clock, server_clock = verbs.observer._clock, verbs.server_clock
    assert isinstance(clock, Ahead)
    assert isinstance(server_clock, ServerClockAhead)
    clock.seconds = server_clock.seconds = 0.0
    verbs.observer = LeaseObserver(clock)


def migrate(store: DynamoStore) -> list[str]:
    with closing(store.connect()) as connection:
        return run(store.migrate(), connection.ask)


@contextmanager
def unmigrated(endpoint: str) -> Iterator[str]:
    """Yield the URL of a table that does not exist yet; delete it afterwards."""
    url = table_url(endpoint, f"oncekey-{uuid.uuid4().hex}")
    yield url
    client(url).delete_table(TableName=name_of(url))


@contextmanager
def table(endpoint: str) -> Iterator[str]:
    """Yield the URL of a new table."""
    with unmigrated(endpoint) as url:
        migrate(open_url(url))
        yield url


def empty(url: str) -> None:
    """Remove all records; keep the table."""
    direct, name = client(url), name_of(url)
    shown = {"ProjectionExpression": "id, part", "TableName": name}
    for page in direct.get_paginator("scan").paginate(**shown):
        keys = [item for item in page["Items"] if item["id"]["B"] != b"oncekey"]
        for at in range(0, len(keys), 25):
            deletes = [{"DeleteRequest": {"Key": found}} for found in keys[at : at + 25]]
            left = direct.batch_write_item(RequestItems={name: deletes})
            assert not left.get("UnprocessedItems")


@functools.cache
def _client(endpoint: str, region: str) -> Any:
    return botocore.session.Session().create_client(
        "dynamodb",
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )


def client(url: str) -> Any:
    """Return a client for direct access to the table."""
    return _client(endpoint_of(url), parse_qs(urlsplit(url).query)["region"][0])


def endpoint_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["endpoint"][0]


def name_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
