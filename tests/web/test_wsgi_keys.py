"""Which requests to a WSGI application are guarded, by their keys, accounts, paths and bodies."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import formatdate
from typing import Any

import pytest

from oncekey import Policy
from oncekey.events import Declined, Event
from tests.web.client import ask_wsgi
from tests.web.wsgi_world import World, world

__all__ = ["world"]


def test_what_was_first_sent_longer_ago_than_is_remembered_is_refused() -> None:
    world = World(profile="azure")
    variables: dict[str, Any] = {
        "HTTP_REPEATABILITY_REQUEST_ID": "8e03978e-40d5-43e8-bc93-6894a57f9324",
        "HTTP_REPEATABILITY_FIRST_SENT": formatdate(world.clock.wall() - 86_400, usegmt=True),
    }
    assert ask_wsgi(world.app, **variables).status == 412
    assert (world.runs, world.stored()) == (0, 0)
    world.app.close()


def test_e3_who_says_when_it_was_first_sent_must_bring_a_key() -> None:
    world = World(profile="azure")
    sent = formatdate(world.clock.wall(), usegmt=True)
    assert ask_wsgi(world.app, HTTP_REPEATABILITY_FIRST_SENT=sent).status == 400
    assert ask_wsgi(world.app).status == 201
    assert world.runs == 1
    world.app.close()


def test_e26_put_and_delete_are_guarded_where_they_are_named() -> None:
    world = World(routes={"DELETE /orders/{id}": Policy()})

    def replayed(path: str) -> bool:
        return ask_wsgi(world.app, "k1", b"", method="DELETE", path=path).replayed

    assert [replayed("/orders/1"), replayed("/orders/1")] == [False, True]
    assert [replayed("/other"), replayed("/other")] == [False, False]
    world.app.close()


def test_p12_refusals_before_the_claim_are_told_without_the_key() -> None:
    told: list[Event] = []
    world = World(policy=Policy(required=True, request_bytes_max=10), hooks=[told.append])
    ask_wsgi(world.app, None)
    ask_wsgi(world.app, "null")
    ask_wsgi(world.app, "k1", b"{")
    ask_wsgi(world.app, "k1", b"x" * 11)
    ask_wsgi(world.app, "k1", HTTP_X_ACCOUNT="")
    kinds = ("missing-key", "invalid-key", "malformed-request", "request-too-large", "no-tenant")
    assert told == [Declined("POST /orders", "", kind) for kind in kinds]
    world.app.close()


@pytest.mark.parametrize("account", [None, ""])
def test_p7_whose_account_is_not_known_is_refused_and_nothing_is_stored(
    account: str | None,
) -> None:
    world = World(tenant=lambda request: account)
    refused = ask_wsgi(world.app, "k1")
    assert (refused.status, refused.kind) == (401, "no-tenant")
    assert (world.runs, world.stored()) == (0, 0)
    world.app.close()


@pytest.mark.parametrize("key", ["", '""', "a b", "a,b", "null", "k" * 256, "schl\xfcssel"])
def test_e2_bad_keys_are_refused_and_nothing_is_stored(world: World, key: str) -> None:
    """In WSGI, two header lines arrive joined by a comma."""
    refused = ask_wsgi(world.app, key)
    assert (refused.status, refused.kind) == (400, "invalid-key")
    assert (world.runs, world.stored()) == (0, 0)


def test_a_body_shorter_than_declared_is_refused(world: World) -> None:
    refused = ask_wsgi(world.app, "k1", b"{}", CONTENT_LENGTH="100")
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert "2 of the 100 bytes" in refused.json()["detail"]
    assert (world.runs, world.stored()) == (0, 0)


@pytest.mark.parametrize("length", ["-2", "+2", "two", "2, 2", "\xb2", "9" * 5_000])
def test_a_length_that_is_no_number_is_refused(world: World, length: str) -> None:
    refused = ask_wsgi(world.app, "k1", CONTENT_LENGTH=length)
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert (world.runs, world.stored()) == (0, 0)


def test_e25_a_body_over_the_limit_is_refused_before_it_is_read(world: World) -> None:
    refused = ask_wsgi(world.app, "k1", b"", CONTENT_LENGTH="50000000")
    assert (refused.status, refused.kind) == (413, "request-too-large")
    assert (world.runs, world.stored()) == (0, 0)


def test_a_chunked_body_is_read_where_the_server_ends_it(world: World) -> None:
    got: list[bytes] = []

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        got.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        return world.counting(environ, start_response)

    world.handler = handler
    chunked: dict[str, Any] = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    assert ask_wsgi(world.app, "k1", b'{"a": 1}', **chunked).status == 201
    assert got == [b'{"a": 1}']
    too_large = ask_wsgi(world.app, "k2", b"x" * 11_000_000, content_type="text/plain", **chunked)
    assert too_large.kind == "request-too-large"


@pytest.mark.parametrize(
    "error", [OSError("Invalid chunk header"), ValueError("Bad chunked transfer size: b'zz'")]
)
def test_a_body_that_the_server_cannot_read_is_refused(world: World, error: Exception) -> None:
    """As werkzeug's and cheroot's servers say it of chunks that are broken, or cut off."""

    class Broken:
        def read(self, size: int) -> bytes:
            raise error

    chunked: dict[str, Any] = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}
    refused = ask_wsgi(world.app, "k1", **{**chunked, "wsgi.input": Broken()})
    assert (refused.status, refused.kind) == (400, "malformed-request")
    assert (world.runs, world.stored()) == (0, 0)


def test_p5_a_chunked_body_whose_end_nobody_tells_is_not_taken_for_an_empty_one(
    world: World,
) -> None:
    chunked = {"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}
    assert ask_wsgi(world.app, "k1", b'{"a": 1}', **chunked).kind == "malformed-request"
    assert (world.runs, world.stored()) == (0, 0)


def test_e11_the_key_may_travel_in_the_body() -> None:
    world, got = World(profile="square"), []

    def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
        got.append(environ["wsgi.input"].read())
        answered: Iterable[bytes] = world.answer_with({})(environ, start_response)
        return answered

    world.handler = handler
    body = {"idempotency_key": "k1"}
    assert [ask_wsgi(world.app, None, body).replayed for _ in range(2)] == [False, True]
    assert ask_wsgi(world.app, None, {"amount": 1}).status == 201
    for bad in (1, "", "a b"):
        assert ask_wsgi(world.app, None, {"idempotency_key": bad}).status == 400
    assert (got, world.stored()) == ([b'{"idempotency_key": "k1"}', b'{"amount": 1}'], 1)
    world.app.close()


def test_e11_a_large_upload_that_can_bring_no_key_is_nobodys_business() -> None:
    world = World(profile="square", policy=Policy(request_bytes_max=10))
    upload = ask_wsgi(world.app, None, b"x" * 100, content_type="image/png")
    assert (upload.status, world.runs) == (201, 1)
    world.app.close()


def test_the_key_is_required_where_the_policy_says_so() -> None:
    world = World(routes={"POST /payments": Policy(required=True)})
    assert ask_wsgi(world.app, None).status == 201
    assert ask_wsgi(world.app, None, path="/payments").kind == "missing-key"
    world.app.close()


def test_p5_paths_that_are_no_text_are_refused_rather_than_taken_for_each_other(
    world: World,
) -> None:
    for path in ("/files/\xff", "/files/\xfe", "/files/\0"):
        assert ask_wsgi(world.app, "k1", path=path).kind == "malformed-request"
    assert (world.runs, world.stored()) == (0, 0)
    assert ask_wsgi(world.app, "k1", path="/files/\xc3\xa9").status == 201
