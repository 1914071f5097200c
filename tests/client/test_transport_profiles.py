"""Where each provider wants the key, under every library: in the body, the query, or not at all."""

from __future__ import annotations

import pytest

from tests.client.libraries import library, sender, server
from tests.client.scripted_server import ScriptedServer

__all__ = ["library", "server"]


def test_a_key_in_the_body(library: str, server: ScriptedServer) -> None:
    server.script = ["drop"]
    with sender(library, profile="square") as send:
        send("POST", f"{server.url}/v2/payments", json={"amount": 1})

    first, second = (seen.body for seen in server.seen)
    assert first == second
    assert first.startswith(b'{"idempotency_key":"0')


def test_a_key_in_the_query(library: str, server: ScriptedServer) -> None:
    server.script = ["drop"]
    with sender(library, profile="gcp") as send:
        send("DELETE", f"{server.url}/instances/1?zone=a")

    first, second = (seen.path for seen in server.seen)
    assert first == second
    assert first.startswith("/instances/1?zone=a&requestId=0")


def test_azure_is_told_when_it_was_first_sent(library: str, server: ScriptedServer) -> None:
    server.script = ["drop"]
    with sender(library, profile="azure") as send:
        send("POST", f"{server.url}/sms")

    names = "repeatability-request-id", "repeatability-first-sent"
    first, second = ([seen.headers.get(name) for name in names] for seen in server.seen)
    assert first == second
    assert None not in first


def test_stripe_s_clients_send_keys_with_post_alone(library: str, server: ScriptedServer) -> None:
    with sender(library, profile="stripe") as send:
        send("DELETE", f"{server.url}/v1/customers/1")

    assert server.keys == [None]


def test_which_methods_change_something_can_be_said(library: str, server: ScriptedServer) -> None:
    with sender(library, methods=["patch"]) as send:
        send("POST", f"{server.url}/search")
        send("PATCH", f"{server.url}/orders/1")

    assert [key is None for key in server.keys] == [True, False]


def test_a_request_without_a_place_for_a_key_is_sent_once(
    library: str, server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [503]
    with sender(library, profile="square") as send:
        assert send("POST", f"{server.url}/v2/x").status_code == 503

    assert len(server.seen) == 1
    assert "wants it in the body's field idempotency_key" in caplog.text
