"""The client for new code."""

from __future__ import annotations

import asyncio
import importlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from oncekey.client import AsyncClient, Client, Retries, SqlJournal, outcome_of
from oncekey.client._client import import_library
from oncekey.errors import Misuse
from tests.client.scripted_server import ScriptedServer, scripted_server

QUICK = Retries(backoff_s=0.001)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as served:
        yield served


def test_every_change_has_a_key_and_is_tried_again(server: ScriptedServer) -> None:
    server.script = ["drop"] * 2
    with Client(base_url=server.url, retries=QUICK, headers={"x-mine": "1"}) as api:
        told = outcome_of(api.post("/orders", json={"sku": "mug"}))
        api.put("/orders/1")
        api.patch("/orders/1")
        api.delete("/orders/1")
        api.get("/orders/1")

    assert told is not None
    assert told.attempts == 3
    assert server.keys[0] == server.keys[1] == server.keys[2] == told.key
    assert len(set(server.keys[2:6])) == 4
    assert [seen.method for seen in server.seen[2:]] == ["POST", "PUT", "PATCH", "DELETE", "GET"]
    assert server.keys[-1] is None
    assert {seen.headers.get("x-mine") for seen in server.seen} == {"1"}


def test_in_an_event_loop_as_well(server: ScriptedServer) -> None:
    server.script = ["drop"]

    async def main() -> None:
        async with AsyncClient(base_url=server.url, retries=QUICK, keys_as="uuid4") as api:
            await api.post("/orders", json={"sku": "mug"}, key="order-17")
            await api.put("/orders/1")
            await api.patch("/orders/1")
            await api.delete("/orders/1")
            await api.get("/orders/1")

    asyncio.run(main())
    assert server.keys[:2] == ["order-17", "order-17"]
    assert [uuid.UUID(key).version for key in server.keys[2:5] if key] == [4, 4, 4]
    assert server.keys[5] is None


@pytest.mark.parametrize(
    ("profile", "key"),
    [("square", "order-17"), ("gcp", "5f2c1d6e-8f1b-4c6e-9d2a-0b7c3e4f5a61")],
)
def test_a_key_goes_where_the_profile_says(server: ScriptedServer, profile: str, key: str) -> None:
    with Client(base_url=server.url, profile=profile) as api:
        api.post("/payments", json={"amount": 1}, key=key)

    (seen,) = server.seen
    assert (key in seen.path, key.encode() in seen.body) == (profile == "gcp", profile == "square")


def test_what_was_given_a_key_does_not_leave_without(server: ScriptedServer) -> None:
    with (
        Client(base_url=server.url, profile="square") as api,
        pytest.raises(Misuse, match="no place for a key"),
    ):
        api.post("/payments", key="order-17")

    assert not server.seen


def test_two_keys_for_one_request_are_refused(server: ScriptedServer) -> None:
    with Client(base_url=server.url) as api, pytest.raises(Misuse, match="given another"):
        api.post("/orders", key="a", headers={"idempotency-key": "b"})

    assert not server.seen


def test_an_empty_key_is_none(server: ScriptedServer) -> None:
    """A new one instead would be another one each time."""
    with Client(base_url=server.url) as api, pytest.raises(Misuse, match="The key is empty"):
        api.post("/orders", key="")

    assert not server.seen


def test_what_is_given_a_key_has_it_whatever_its_method(server: ScriptedServer) -> None:
    server.script = [503]
    with Client(base_url=server.url, retries=QUICK) as api:
        api.get("/render", key="order-17")

    assert server.keys == ["order-17"] * 2


def test_nothing_is_sent_past_the_keys(server: ScriptedServer) -> None:
    """Not through a proxy, and not by what is mounted."""
    mounted = import_library().HTTPTransport()
    with (
        scripted_server() as proxy,
        Client(proxy=proxy.url, mounts={"all://127.0.0.1": mounted}) as api,
    ):
        api.post("http://api.test/orders")
        api.post(f"{server.url}/orders")
        assert [seen.path for seen in proxy.seen] == ["http://api.test/orders"]
        assert None not in proxy.keys

    assert (len(server.keys), None in server.keys) == (1, False)


def test_what_is_about_the_wire_goes_to_the_transport(server: ScriptedServer) -> None:
    limits = import_library().Limits(max_connections=1)
    with Client(base_url=server.url, verify=False, limits=limits, trust_env=False) as api:
        assert api.post("/orders").status_code == 201
        assert not api.inner.trust_env

    transport = import_library().HTTPTransport()
    with pytest.raises(Misuse, match="give proxy to the transport that you give"):
        Client(transport=transport, proxy="http://localhost:1")


@pytest.mark.parametrize("key", [uuid.uuid4(), 17, b"k1"], ids=lambda key: type(key).__name__)
def test_a_key_that_is_no_text_is_refused(server: ScriptedServer, key: Any) -> None:
    with Client(base_url=server.url) as api, pytest.raises(Misuse, match=r"key=str\(…\)"):
        api.post("/orders", key=key)
    assert server.seen == []


def test_keys_that_the_profile_s_servers_do_not_take_are_refused(server: ScriptedServer) -> None:
    with pytest.raises(Misuse, match="takes only UUIDs"):
        Client(profile="gcp", keys_as="ulid")
    with Client(base_url=server.url) as api, pytest.raises(Misuse, match="placeholder"):
        api.post("/orders", key="null")


def test_one_of_the_libraries_must_be_there() -> None:
    assert import_library(("no_such_library", "httpx")).__name__ == "httpx"
    with pytest.raises(Misuse, match="needs one of no_such_library"):
        import_library(("no_such_library",))


@pytest.mark.parametrize("journal", ["intents.db", SqlJournal()])
def test_what_is_no_journal_is_refused_before_the_first_request(journal: Any) -> None:
    with pytest.raises(Misuse, match=r"journal=… takes a Journal\('intents\.db'\)"):
        Client(base_url="https://api.example.com", journal=journal)


@pytest.mark.parametrize("mounted", [False, True])
def test_a_transport_of_another_kind_is_refused_before_the_first_request(mounted: bool) -> None:
    for client, module, wrong, told in (
        (Client, "httpx2", "AsyncHTTPTransport", "it is for httpx.AsyncClient"),
        (AsyncClient, "httpx2", "HTTPTransport", "it is for httpx.Client"),
        (Client, "requests.adapters", "HTTPAdapter", "it is for session.mount"),
        (Client, "httpx", "HTTPTransport", "one of httpx, and Client"),
    ):
        transport = getattr(importlib.import_module(module), wrong)()
        given: dict[str, Any] = (
            {"mounts": {"https://": transport}} if mounted else {"transport": transport}
        )
        with pytest.raises(Misuse, match=told):
            client(**given)
