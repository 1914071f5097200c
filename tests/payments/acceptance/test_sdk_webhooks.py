"""Webhooks, as Stripe's clients register, receive and check them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.payments.acceptance.sdk import Refused, Sdk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WAIT_S_MAX = 60.0
CHARGE = {"amount": 2000, "currency": "eur", "source": "tok_visa"}


class Receiver:
    """Takes whatever is posted, and answers 200."""

    def __init__(self) -> None:
        self.came: queue.Queue[tuple[str, str]] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                receiver.came.put((body, self.headers["stripe-signature"]))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def test_a_real_delivery_is_believed_and_a_forged_one_is_not(sdk: Sdk, receiver: Receiver) -> None:
    endpoint = sdk.ask(
        "webhook_endpoints.create",
        params={"url": receiver.url, "enabled_events": ["charge.succeeded"]},
    )
    charge = sdk.ask("charges.create", params=CHARGE)
    body, signature = receiver.came.get(timeout=WAIT_S_MAX)
    event = sdk.event(body, signature, endpoint["secret"])
    assert event["type"] == "charge.succeeded"
    assert event["data"]["object"]["id"] == charge["id"]
    assert event["id"] == sdk.ask("events.retrieve", event["id"])["id"]
    forgeries = [
        (body.replace("2000", "9000"), signature, endpoint["secret"]),
        (body, signature, "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldA=="),
        (body, signature.replace("t=", "t=1"), endpoint["secret"]),
    ]
    for forged in forgeries:
        with pytest.raises(Refused) as caught:
            sdk.event(*forged)
        assert caught.value.kind == "SignatureVerificationError"
    assert sdk.ask("webhook_endpoints.delete", endpoint["id"])["deleted"] is True


def test_endpoints_are_changed_listed_and_switched_off(sdk: Sdk, receiver: Receiver) -> None:
    made = sdk.ask(
        "webhook_endpoints.create", params={"url": receiver.url, "enabled_events": ["*"]}
    )
    changed = sdk.ask(
        "webhook_endpoints.update", made["id"], params={"disabled": True, "description": "off"}
    )
    assert changed["status"] == "disabled"
    assert made["id"] in sdk.pages("webhook_endpoints.list", {"limit": 1})
    sdk.ask("charges.create", params=CHARGE)
    assert receiver.came.empty()
    sdk.ask("webhook_endpoints.delete", made["id"])
