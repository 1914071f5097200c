"""Which requests to an ASGI application are guarded, by their keys, methods and bodies."""

from __future__ import annotations

import asyncio
import gzip
import json
import uuid
from email.utils import formatdate
from typing import Any

import pytest

from oncekey import Policy
from oncekey._core.canonical import FIELDS_MAX
from oncekey.events import Declined, Event
from oncekey.stores.memory import MemoryStore
from oncekey.web import _asgi_messages as messages
from oncekey.web.asgi import IdempotencyMiddleware
from tests.web.asgi_world import World, tenant_of
from tests.web.client import Reply, ask, request_headers, scope_for

pytestmark = pytest.mark.anyio


async def test_e26_methods_that_are_not_guarded_pass_through() -> None:
    world = World(policy=Policy(required=True))
    for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE"):
        assert (await ask(world.app, "k1", method=method)).status == 201
    assert (world.runs, world.stored()) == (5, 0)


async def test_e26_put_and_delete_are_guarded_when_named() -> None:
    world = World(routes={"DELETE /orders/{id}": Policy()})
    await ask(world.app, "k1", b"", method="DELETE", path="/orders/1")
    assert (await ask(world.app, "k1", b"", method="DELETE", path="/orders/1")).replayed
    for _ in range(2):
        assert not (await ask(world.app, "k1", b"", method="DELETE", path="/other")).replayed


async def test_no_key_passes_through_unless_it_is_required() -> None:
    world = World(routes={"POST /payments": Policy(required=True)})
    assert (await ask(world.app, None, path="/orders")).status == 201
    refused = await ask(world.app, None, path="/payments")
    assert (refused.status, refused.kind) == (400, "missing-key")
    assert "Idempotency-Key" in refused.json()["detail"]
    assert (world.runs, world.stored()) == (1, 0)


async def test_p12_refusals_before_the_claim_are_told_without_the_key() -> None:
    told: list[Event] = []
    world = World(policy=Policy(required=True, request_bytes_max=10), hooks=[told.append])
    await ask(world.app, None)
    await ask(world.app, "null")
    await ask(world.app, "k1", b"{")
    await ask(world.app, "k1", b"x" * 11)
    await ask(world.app, "k1", headers=[(b"x-account", b"")])
    kinds = ("missing-key", "invalid-key", "malformed-request", "request-too-large", "no-tenant")
    assert told == [Declined("POST /orders", "", kind) for kind in kinds]


async def test_p5_paths_that_are_no_text_are_not_taken_for_one_another() -> None:
    """Servers put the same character in place of every byte that is not UTF-8."""
    world = World(routes={"POST /items/{name}": Policy()})
    refused = await ask(world.app, "k1", path="/items/\ufffd", raw_path=b"/items/%E9")
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert (world.runs, world.stored()) == (0, 0)
    meant: dict[str, Any] = {"path": "/items/\ufffd", "raw_path": b"/items/%EF%BF%BD"}
    assert (await ask(world.app, "k1", **meant)).status == 201
    assert (await ask(world.app, "k1", **meant)).replayed


async def test_a_request_without_key_still_gets_its_body() -> None:
    world = World(routes={"POST /payments": Policy(required=True)})
    got: list[bytes] = []

    async def handler(receive: Any, send: Any) -> None:
        got.append((await receive())["body"])
        await world.answer_with({})(receive, send)

    world.handler = handler
    await ask(world.app, None, {"a": 1}, path="/orders")
    assert json.loads(got[0]) == {"a": 1}


async def test_a_large_body_without_a_key_is_nobodys_business() -> None:
    world = World(routes={"POST /payments": Policy(required=True)})
    large = b"x" * 2_000_000
    assert (await ask(world.app, None, large, content_type="text/plain")).status == 201
    refused = await ask(world.app, None, large, path="/payments", content_type="text/plain")
    assert refused.kind == "missing-key"
    assert world.runs == 1


BAD_KEYS: list[bytes] = [
    b"",
    b'""',
    b"a b",
    b"a, b",
    "schlüssel".encode(),
    b"a\x01b",
    b"k" * 256,
    b"null",
    b"undefined",
    b"[object Object]",
    b"00000000-0000-0000-0000-000000000000",
    b'"k";p=1',
]


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_bad_keys_are_refused_and_nothing_is_stored(key: bytes) -> None:
    world = World()
    refused = await ask(world.app, key)
    assert (refused.status, refused.kind) == (400, "invalid-key")
    assert (world.runs, world.stored()) == (0, 0)


async def test_e2_two_key_lines_are_refused_even_if_equal() -> None:
    world = World()
    refused = await ask(world.app, "k1", headers=[(b"idempotency-key", b"k1")])
    assert (refused.status, refused.kind) == (400, "invalid-key")
    assert world.stored() == 0


async def test_e4_quoted_and_bare_are_one_key() -> None:
    world = World()
    await ask(world.app, '"k1"')
    assert (await ask(world.app, "k1")).replayed


BAD_BODIES = [b"{", b'{"a":1,"a":2}', b"[NaN]", b"\xff\xfe{", b"[" * 100_000]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_malformed_json_is_refused_and_nothing_is_stored(body: bytes) -> None:
    world = World()
    refused = await ask(world.app, "k1", body)
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert (world.runs, world.stored()) == (0, 0)


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/vnd.api+json; v=1", "text/plain"],
)
async def test_e20_a_compressed_body_is_compared_by_what_it_says(content_type: str) -> None:
    """A client that compresses each try anew writes another time into it."""
    world = World()

    async def order(body: bytes, mtime: int) -> Reply:
        coded, told = gzip.compress(body, mtime=mtime), [(b"content-encoding", b"gzip")]
        return await ask(world.app, "k1", coded, content_type=content_type, headers=told)

    assert (await order(b'{"a": 1}', 1)).status == 201
    assert (await order(b'{"a": 1}', 2)).replayed
    assert (await order(b'{"a": 2}', 3)).kind == "mismatch"
    assert world.runs == 1


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/vnd.api+json; v=1", "multipart/form-data; boundary=b"],
)
async def test_e20_what_is_coded_in_another_way_is_compared_by_its_bytes(content_type: str) -> None:
    world = World()

    async def order(body: bytes) -> Reply:
        told = [(b"content-encoding", b"br")]
        return await ask(world.app, "k1", body, content_type=content_type, headers=told)

    assert (await order(b"\x0b\x02")).status == 201
    assert (await order(b"\x0b\x02")).replayed
    assert (await order(b"\x0b\x03")).kind == "mismatch"
    assert world.runs == 1


async def test_p5_the_same_bytes_mean_something_else_where_nothing_says_how_they_are_coded() -> (
    None
):
    world, body = World(), gzip.compress(b"1")
    coded = [(b"content-encoding", b"gzip")]
    for _ in range(2):  # so that the process remembers its replay
        reply = await ask(world.app, "k1", body, content_type="text/plain", headers=coded)
    assert reply.replayed
    assert (await ask(world.app, "k1", body, content_type="text/plain")).kind == "mismatch"


async def test_e25_a_body_over_the_limit_is_refused_before_the_claim() -> None:
    world = World()
    declared = await ask(world.app, "k1", b"x" * 11_000_000, content_type="text/plain")
    chunked = await ask(
        world.app, "k1", b"", content_type="text/plain", chunks=[b"x" * 1_100_000] * 10
    )
    assert [declared.kind, chunked.kind] == ["request-too-large"] * 2
    assert declared.status == chunked.status == 413
    assert (world.runs, world.stored()) == (0, 0)


async def test_a_lying_content_length_changes_nothing() -> None:
    world = World()
    headers = [(b"content-length", b"-5"), (b"content-length", b"banana")]
    assert (await ask(world.app, "k1", b"", headers=headers)).status == 201


async def test_e11_the_key_may_travel_in_the_body() -> None:
    world = World(profile="square")
    body = {"idempotency_key": "k1", "amount": 1}
    assert (await ask(world.app, None, body)).status == 201
    assert (await ask(world.app, None, body)).replayed
    other = await ask(world.app, None, {**body, "amount": 2})
    assert other.status == 400
    assert world.runs == 1


async def test_e11_a_body_that_brings_no_key_is_passed_on_and_a_bad_key_in_it_is_refused() -> None:
    world, got = World(profile="square"), []

    async def handler(receive: Any, send: Any) -> None:
        got.append((await receive())["body"])
        await world.answer_with({})(receive, send)

    world.handler = handler
    assert (await ask(world.app, None, {"amount": 1})).status == 201
    for bad in (1, "", "a b"):
        assert (await ask(world.app, None, {"idempotency_key": bad})).status == 400
    assert (got, world.stored()) == ([b'{"amount": 1}'], 0)


async def test_e11_json_as_the_clients_of_aws_name_it_is_read_for_the_key() -> None:
    world, kind = World(profile="aws"), "application/x-amz-json-1.1"
    body = b'{"ClientToken": "k1", "amount": 1}'
    assert (await ask(world.app, None, body, content_type=kind)).status == 201
    assert (await ask(world.app, None, body, content_type=kind)).replayed
    assert world.runs == 1


async def test_p5_where_a_header_names_the_action_another_action_is_another_request() -> None:
    world, body = World(profile="aws"), {"ClientToken": "k1", "amount": 1}
    create, delete = ([(b"x-amz-target", b"Orders." + verb)] for verb in (b"Create", b"Delete"))
    assert (await ask(world.app, None, body, headers=create)).status == 201
    assert (await ask(world.app, None, body, headers=delete)).status == 400
    assert (await ask(world.app, None, body, headers=create)).replayed
    again = await ask(world.app, None, body, headers=delete)  # now the replay is remembered
    assert again.status == 400
    assert world.runs == 1


async def test_e11_the_key_may_travel_in_a_body_that_is_compressed() -> None:
    world, told = World(profile="square"), [(b"content-encoding", b"gzip")]
    body = b'{"idempotency_key": "k1", "amount": 1}'
    assert (await ask(world.app, None, gzip.compress(body, mtime=1), headers=told)).status == 201
    assert (await ask(world.app, None, gzip.compress(body, mtime=2), headers=told)).replayed


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    ("coding", "body"),
    [(b"br", b"\x0b\x02"), (b"gzip", b"{}"), (b"gzip", gzip.compress(bytes(2_000_000)))],
    ids=["unreadable", "broken", "too large"],
)
async def test_e11_a_key_that_may_be_in_an_unreadable_body_is_not_taken_for_missing(
    content_type: str, coding: bytes, body: bytes
) -> None:
    world, told = World(profile="square"), [(b"content-encoding", coding)]
    refused = await ask(world.app, None, body, content_type=content_type, headers=told)
    assert (refused.status, world.runs) == (400, 0)
    upload = await ask(world.app, None, body, content_type="image/png", headers=told)
    assert (upload.status, world.runs) == (201, 1)


async def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business() -> None:
    world = World(profile="square", policy=Policy(request_bytes_max=10))
    upload = await ask(world.app, None, b"x" * 100, content_type="image/png")
    order = await ask(world.app, None, b"{" + b" " * 100 + b"}")
    assert (upload.status, order.status, world.runs) == (201, 413, 1)


async def test_e11_the_key_may_travel_in_the_query() -> None:
    world = World(profile="gcp")
    query = b"requestId=8e03978e-40d5-43e8-bc93-6894a57f9324"
    assert (await ask(world.app, None, query=query)).status == 201
    assert (await ask(world.app, None, query=query)).replayed
    assert world.runs == 1


async def test_e2_a_query_with_two_keys_is_refused() -> None:
    world = World(profile="gcp")
    query = b"requestId=8e03978e-40d5-43e8-bc93-6894a57f9324"
    assert (await ask(world.app, None, query=query + b"&" + query)).status == 400
    assert (world.runs, world.stored()) == (0, 0)


@pytest.mark.parametrize(("ago_s", "status"), [(60, 201), (86_400, 412), (None, 400)])
async def test_what_was_first_sent_longer_ago_than_is_remembered_is_refused(
    ago_s: int | None, status: int
) -> None:
    world = World(profile="azure")
    lines = [(b"repeatability-request-id", b"8e03978e-40d5-43e8-bc93-6894a57f9324")]
    if ago_s is not None:
        sent = formatdate(world.clock.wall() - ago_s, usegmt=True)
        lines.append((b"repeatability-first-sent", sent.encode()))
    assert (await ask(world.app, None, headers=lines)).status == status
    assert (world.runs, world.stored()) == ((1, 1) if status == 201 else (0, 0))


async def test_e3_who_says_when_it_was_first_sent_must_bring_a_key() -> None:
    world = World(profile="azure")
    sent = formatdate(world.clock.wall(), usegmt=True).encode()
    reply = await ask(world.app, None, headers=[(b"repeatability-first-sent", sent)])
    assert (reply.status, world.runs) == (400, 0)
    assert b"Repeatability-Request-ID" in reply.body
    assert (await ask(world.app, None)).status == 201  # it asks for nothing


async def test_field_digests_name_what_differs_and_never_values() -> None:
    world = World(policy=Policy(field_digests=True))
    await ask(world.app, "k1", {"amount": 1299, "currency": "eur", "note": "x"})
    other = await ask(world.app, "k1", {"amount": 9999, "currency": "eur", "memo": "y"})
    assert other.json()["fields"] == ["amount", "memo", "note"]
    assert b"1299" not in other.body


async def test_websockets_pass_through() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    guarded = IdempotencyMiddleware(app, store=MemoryStore(), tenant=tenant_of)
    await guarded({"type": "websocket"}, None, None)  # type: ignore[arg-type]
    assert seen == ["websocket"]


@pytest.mark.parametrize("profile", ["oncekey", "gcp"])
async def test_p11_a_query_of_too_many_parameters_is_refused_wherever_it_is_read(
    profile: str,
) -> None:
    """Not every server limits it, and reading megabytes of it would hold up all others."""
    world = World(profile=profile, status_path="/idempotency")
    named = b"operation=POST%20/orders&requestId="
    query = named + str(uuid.uuid4()).encode()
    assert (await ask(world.app, "k1", query=query)).status == 201
    query = named + str(uuid.uuid4()).encode() + b"&a" * FIELDS_MAX
    assert (await ask(world.app, "k2", query=query)).status == 400
    assert world.runs == 1
    asked = await ask(world.app, "k1", b"", method="GET", path="/idempotency", query=query)
    assert asked.status == 400


async def test_p11_a_body_that_stops_coming_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Servers of ASGI wait as long as the connection lasts."""
    monkeypatch.setattr(messages, "SILENT_S_MAX", 0.01)
    world, asked, sent = World(), [], []

    async def receive() -> Any:
        asked.append(1)
        if len(asked) == 1:
            return {"type": "http.request", "body": b'{"half": ', "more_body": True}
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    lines = request_headers("k1", b"{}", "application/json", ())
    await world.app(scope_for("POST", "/orders", lines), receive, send)
    assert sent[0]["status"] == 400
    assert b"malformed-request" in sent[1]["body"]
    assert (world.runs, world.stored()) == (0, 0)
