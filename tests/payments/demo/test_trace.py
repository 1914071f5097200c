"""What is noticed of a request, who is told, and that neither grows without end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from payments.access.accounts import Accounts
from payments.demo import trace as watch
from payments.demo.trace import TraceLog
from tests.payments.api_client import Api, start_api

CHARGE = {"amount": 500, "currency": "eur", "source": "tok_visa"}


def parse_entries(lines: list[bytes]) -> list[dict[str, Any]]:
    data = [line.partition(b"data: ")[2] for line in lines]
    return [json.loads(each) for each in data if each]


async def read_stream(watch: TraceLog, after: int | None, count: int) -> list[dict[str, Any]]:
    """The first so many notices of a stream."""
    lines: list[bytes] = []
    stream = watch.stream(after)
    async for line in stream:
        lines.append(line)
        if len(parse_entries(lines)) == count:
            break
    await stream.aclose()
    return parse_entries(lines)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[TraceLog]:
    """The watches of applications that are made from now on."""
    made: list[TraceLog] = []

    class RecordedTrace(TraceLog):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr("payments.app.TraceLog", RecordedTrace)
    return made


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory, traces: list[TraceLog]) -> Any:
    with start_api(tmp_path_factory.mktemp("watched")) as api:
        yield api


def test_a_charge_is_seen_on_its_way(api: Api, traces: list[TraceLog]) -> None:
    api.post("charges", CHARGE, key="k1")
    api.post("charges", CHARGE, key="k1")
    api.post("charges", {**CHARGE, "amount": 501}, key="k1")

    notices = asyncio.run(read_stream(traces[0], 0, 14))
    seen = [(notice["request"], notice["part"], notice["says"]) for notice in notices]
    assert seen == [
        (1, "client", "a request arrives"),
        (1, "limiter", "accepted: valid key, within the limits"),
        (1, "key", "claimed: attempt 1, fence 1"),
        (1, "handler", "runs"),
        (1, "handler", "done: 200, recorded together with its rows"),
        (1, "webhook", "an event is written together with the charge"),
        (1, "client", "gets 200"),
        (2, "client", "a request arrives"),
        (2, "limiter", "accepted: valid key, within the limits"),
        (2, "key", "known: the stored response, nothing runs"),
        (2, "client", "gets 200, the stored response"),
        (3, "client", "a request arrives"),
        (3, "limiter", "accepted: valid key, within the limits"),
        (3, "key", "refused: mismatch"),
    ]
    assert {notice["key"] for notice in notices} == {"k1"}
    assert traces[0].requests_of("k1") == 3


def test_what_others_buy_is_not_watched(api: Api, traces: list[TraceLog]) -> None:
    """Their keys would push out those that the page asks for."""
    _, other = Accounts(api.database).create("another shop")
    headers = {"authorization": f"Bearer {other}", "idempotency-key": "k2"}
    assert api.client.post("/v1/charges", data=CHARGE, headers=headers).status_code == 200
    assert traces[0].requests_of("k2") == 0
    assert not traces[0]._entries


def test_whoever_comes_back_misses_nothing() -> None:
    told = TraceLog()
    for number in range(5):
        told.add("key", "good", str(number))

    assert [each["says"] for each in asyncio.run(read_stream(told, 3, 2))] == ["3", "4"]


def test_whoever_was_told_by_another_process_is_told_by_this_one() -> None:
    told = TraceLog()
    told.add("key", "good", "first")

    async def main() -> list[dict[str, Any]]:
        stream = told.stream(1000)
        lines = [await anext(stream)]
        told.add("key", "good", "second")
        lines.append(await anext(stream))
        await stream.aclose()
        return parse_entries(lines)

    assert [each["says"] for each in asyncio.run(main())] == ["second"]


def test_who_listens_is_told_from_any_thread() -> None:
    told = TraceLog()

    async def main() -> list[dict[str, Any]]:
        stream = told.stream(None)
        first = await anext(stream)
        await asyncio.to_thread(told.add, "network", "good", "from a thread")
        second = await anext(stream)
        await stream.aclose()
        return parse_entries([first, second])

    assert [each["says"] for each in asyncio.run(main())] == ["from a thread"]


def test_a_stream_ends_so_that_a_server_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STREAM_S", 0.01)
    told = TraceLog()

    async def main() -> list[bytes]:
        return [line async for line in told.stream(None)]

    assert asyncio.run(main()) == [b"retry: 100\nid: 0\n\n"]
    assert not told._listeners


def test_it_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KEYS_MAX", 3)
    monkeypatch.setattr(watch, "LISTENERS_MAX", 1)
    told = TraceLog()
    for number in range(watch.ENTRIES_MAX + 10):
        told.add("key", "good", "again")
        told._count(f"k{number}")

    assert len(told._entries) == watch.ENTRIES_MAX
    assert len(told._seen) == 3

    async def main() -> bool:
        stream = told.stream(None)
        await anext(stream)
        full = told.is_full
        await stream.aclose()
        return full

    assert asyncio.run(main())
    assert not told.is_full


def test_nobody_watches_where_the_local_key_does_not_work(
    tmp_path_factory: pytest.TempPathFactory, traces: list[TraceLog]
) -> None:
    with start_api(tmp_path_factory.mktemp("unwatched"), demo=False) as api:
        api.post("charges", CHARGE, key="k1")
        assert not traces
        assert api.client.get("/demo/tally").status_code == 404
        assert api.client.get("/", follow_redirects=False).headers["location"] == "/explain"
