"""Tables for tests, and stores whose time passes when they are told so."""

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
from oncekey.stores.dynamodb.leases import Sightings
from oncekey.stores.dynamodb.server_date import Dates
from oncekey.stores.dynamodb.statements import Call
from oncekey.stores.dynamodb.store import DynamoStore, open_url
from oncekey.testing.contract import Subject
from tests.servers.ministack import table_url

_VARIABLE = re.compile(r"[#:]\w+")


class Ahead(SystemClock):
    """The real clock, and what it was told to be ahead of it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return SystemClock.monotonic() + self.seconds


class DatesAhead(Dates):
    """The server's date, and what it was told to be ahead of it; it may be set back."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.seconds = 0.0

    def now(self) -> int:
        return super().now() + round(self.seconds * 1_000_000)

    def latest(self) -> int:
        return super().latest() + round(self.seconds * 1_000_000)


def must_suit_amazon(call: Call) -> None:
    """Amazon refuses a call whose expressions leave a variable out, or have one that is not given.
    Emulators carry it out.
    """
    members = call.parameters.get("TransactItems", [{"": call.parameters}])
    for parameters in (each for member in members for each in member.values()):
        written = [text for name, text in parameters.items() if name.endswith("Expression")]
        given = {
            *parameters.get("ExpressionAttributeNames", {}),
            *parameters.get("ExpressionAttributeValues", {}),
        }
        assert set(_VARIABLE.findall(" ".join(written))) == given, (call.method, written, given)


def _exact(calls: list[Call]) -> list[Call]:
    for call in calls:
        must_suit_amazon(call)
    return calls


class Exact(DynamoStore):
    """Asks nothing that Amazon would not understand."""

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        return relay(super().perform(verbs), _exact)


def subject(url: str) -> Subject:
    """A store that has watched whatever it has seen for as long as it is told to."""
    clock, dates = Ahead(), DatesAhead()

    def elapse(seconds: float) -> None:
        dates.seconds += seconds
        clock.seconds += max(seconds, 0.0)  # nobody can set a monotonic clock back

    store = open_url(url, clock=clock, dates=dates)
    store.__class__ = Exact
    return Subject(store, elapse=elapse, observed=True)


def anew(subject: Subject) -> None:
    """Let it be a process that has just begun: it has seen nothing yet, and its time is now.

    A sweep tells of a few sightings at a time: records that were removed behind the store's back
    would stand before those of the test. And other processes know nothing of time that was made
    to pass here.
    """
    assert isinstance(subject.store, DynamoStore)
    verbs = subject.store._verbs
    clock, dates = verbs.sightings._clock, verbs.dates
    assert isinstance(clock, Ahead)
    assert isinstance(dates, DatesAhead)
    clock.seconds = dates.seconds = 0.0
    verbs.sightings = Sightings(clock)


def migrate(store: DynamoStore) -> list[str]:
    with closing(store.connect()) as connection:
        return run(store.migrate(), connection.ask)


@contextmanager
def unmigrated(endpoint: str) -> Iterator[str]:
    """The URL of a table that is not there yet, and is gone afterwards."""
    url = table_url(endpoint, f"oncekey-{uuid.uuid4().hex}")
    yield url
    client(url).delete_table(TableName=name_of(url))


@contextmanager
def table(endpoint: str) -> Iterator[str]:
    """The URL of a new table."""
    with unmigrated(endpoint) as url:
        migrate(open_url(url))
        yield url


def empty(url: str) -> None:
    """Forget all records; the table stays what it is."""
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
    """To look behind a store's back."""
    return _client(endpoint_of(url), parse_qs(urlsplit(url).query)["region"][0])


def endpoint_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["endpoint"][0]


def name_of(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
