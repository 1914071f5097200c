"""Webhook endpoints, used through Stripe's own client against a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import stripe

from oncekey.webhooks import LOOPBACK
from payments.access.accounts import Accounts, Mode
from payments.api.webhook_endpoints import ENDPOINTS_MAX
from payments.app import create_app
from payments.server import migrate
from payments.settings import Settings
from payments.storage.database import Database
from tests.acceptance.serve import serving
from tests.payments.delivery_setup import until
from tests.payments.webhooks.test_worker import OK, parse, start_answering
from tests.webhooks.listeners import listening

pytestmark = pytest.mark.slow  # a real server

URL = "https://hooks.example.com/stripe"
WANTED = ["charge.succeeded", "customer.created"]


class Server:
    """The API on a real socket, and Stripe's client for an account of its own."""

    def __init__(self, port: int, accounts: Accounts, mode: Mode = "test") -> None:
        self.port = port
        self.accounts = accounts
        _, key = accounts.create("somebody", mode)
        self.client = stripe.StripeClient(
            key,
            base_addresses={"api": f"http://127.0.0.1:{port}"},
            max_network_retries=0,
            http_client=stripe.RequestsClient(),
        )
        self.endpoints = self.client.v1.webhook_endpoints

    def other(self, mode: Mode = "test") -> Server:
        """The same for another account."""
        return Server(self.port, self.accounts, mode)

    def endpoint(self, url: str = URL, **more: Any) -> Any:
        params: Any = {"url": url, "enabled_events": WANTED} | more
        return self.endpoints.create(params)


@contextmanager
def running(folder: Path, **settings: Any) -> Iterator[Server]:
    made = Settings(data=folder, **settings)
    migrate(made)
    with closing(Database(made)) as database, serving(create_app(made)) as client:
        yield Server(client.port, Accounts(database))


@pytest.fixture(scope="module")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("payments"), webhook_networks=LOOPBACK) as server:
        yield server


@pytest.fixture
def server(_running: Server) -> Server:
    """One server, and a new account for each test."""
    return _running.other()


# ----------------------------------------------------------------------------------- the object


def test_an_endpoint_lives(server: Server) -> None:
    endpoints = server.endpoints
    made = server.endpoint(description="main", metadata={"a": "1"})
    assert made.id.startswith("we_")
    assert made.secret.startswith("whsec_")
    assert (made.status, made.url, made.enabled_events) == ("enabled", URL, WANTED)
    assert made.livemode is False

    seen = endpoints.retrieve(made.id)
    assert "secret" not in seen  # shown once
    assert "secret" not in endpoints.list().data[0]
    assert (seen.description, seen.metadata.to_dict()) == ("main", {"a": "1"})

    changed = endpoints.update(
        made.id,
        {"disabled": True, "url": f"{URL}/2", "metadata": {"b": "2"}, "description": ""},
    )
    assert (changed.status, changed.url) == ("disabled", f"{URL}/2")
    assert changed.metadata.to_dict() == {"a": "1", "b": "2"}
    assert changed.description is None
    assert endpoints.update(made.id, {"disabled": False}).status == "enabled"
    assert endpoints.update(made.id, {"enabled_events": ["*"]}).enabled_events == ["*"]

    assert endpoints.delete(made.id).deleted is True
    with pytest.raises(stripe.InvalidRequestError) as told:
        endpoints.retrieve(made.id)
    assert told.value.http_status == 404


def test_lists_page_by_themselves(server: Server) -> None:
    made = [server.endpoint(f"{URL}/{n}").id for n in range(5)]
    found = server.endpoints.list({"limit": 2})
    assert [each.id for each in found.auto_paging_iter()] == made[::-1]


def test_a_retry_makes_no_second_endpoint_and_gets_the_same_secret(server: Server) -> None:
    params: Any = {"url": URL, "enabled_events": WANTED}
    create = server.endpoints.create
    first = create(params, {"idempotency_key": "k1"})
    again = create(params, {"idempotency_key": "k1"})
    assert (first.id, first.secret) == (again.id, again.secret)
    assert len(server.endpoints.list().data) == 1


def test_accounts_do_not_see_each_others(server: Server) -> None:
    made, other = server.endpoint(), server.other().endpoints
    assert other.list().data == []
    for call in (other.retrieve, other.delete, other.update):
        with pytest.raises(stripe.InvalidRequestError) as told:
            call(made.id)
        assert told.value.http_status == 404
    assert server.endpoints.retrieve(made.id).status == "enabled"


# ---------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "url",
    [
        *("https://10.0.0.1/", "https://169.254.169.254/latest", "https://[fd00::1]/"),
        *("https://[::ffff:10.0.0.1]/", "ftp://example.com/", "nonsense", "https://u:p@x.example/"),
    ],
)
def test_urls_that_are_refused(server: Server, url: str) -> None:
    with pytest.raises(stripe.InvalidRequestError) as told:
        server.endpoint(url)
    assert (told.value.http_status, told.value.param) == (400, "url")
    made = server.endpoint()
    with pytest.raises(stripe.InvalidRequestError) as told:
        server.endpoints.update(made.id, {"url": url})
    assert (told.value.http_status, told.value.param) == (400, "url")
    assert [e.url for e in server.endpoints.list().data] == [URL]


def test_private_urls_are_refused_unless_the_settings_allow_them(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        for url in ("http://127.0.0.1:4242/", "http://localhost:4242/"):
            with pytest.raises(stripe.InvalidRequestError, match="not a public address"):
                server.endpoint(url)
        assert server.endpoint("http://hooks.example.com/").status == "enabled"  # test mode


def test_live_mode_needs_https(server: Server) -> None:
    live = server.other("live")
    with pytest.raises(stripe.InvalidRequestError, match="https://"):
        live.endpoint("http://hooks.example.com/")
    assert live.endpoint().livemode is True


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"enabled_events": []}, "enabled_events"),
        ({"enabled_events": ["Nonsense!"]}, "enabled_events[0]"),
        ({"api_version": "1999-01-01"}, "api_version"),
        ({"unknown": "1"}, "unknown"),
        ({"url": None}, "url"),
    ],
)
def test_parameters_that_are_refused(server: Server, given: dict[str, Any], param: str) -> None:
    with pytest.raises(stripe.InvalidRequestError) as told:
        server.endpoint(**given)
    assert (told.value.http_status, told.value.param) == (400, param)
    assert server.endpoints.list().data == []


def test_an_account_has_so_many_and_no_more(server: Server) -> None:
    for n in range(ENDPOINTS_MAX):
        server.endpoint(f"{URL}/{n}")
    with pytest.raises(stripe.InvalidRequestError, match="at most"):
        server.endpoint()


# --------------------------------------------------------------------------- from end to end


def test_an_event_arrives_and_stripes_library_believes_it(server: Server) -> None:
    wait = threading.Event().wait
    with listening(OK) as there:
        made = server.endpoint(there.url)
        customer = server.client.v1.customers.create({"name": "Ada"})
        until(lambda: len(there.requests) == 1, wait)
        headers, body = parse(there.requests[0])
        event = stripe.Webhook.construct_event(body, headers["stripe-signature"], made.secret)
        assert (event.type, event.data.object["id"]) == ("customer.created", customer.id)

        # replace the secret: the old one signs too, for a while
        rolled = _post(server, f"/v1/webhook_endpoints/{made.id}/roll_secret")
        assert rolled["secret"] not in (None, made.secret)

        # … and send it again
        told = _post(server, f"/v1/events/{event.id}/retry", webhook_endpoint=made.id)
        assert told["id"] == event.id
        until(lambda: len(there.requests) == 2, wait)
        headers, body = parse(there.requests[1])
        for secret in (made.secret, rolled["secret"]):
            again = stripe.Webhook.construct_event(body, headers["stripe-signature"], secret)
            assert again.id == event.id

        path = f"/v1/webhook_endpoints/{made.id}/deliveries"
        until(lambda: _get(server, path)["data"][0]["status"] == "delivered", wait)
        log = _get(server, path)["data"]
    assert [each["event"] for each in log] == [event.id, event.id]
    assert [[a["http_status"] for a in each["attempts"]] for each in log] == [[200], [200]]
    assert [each["next_attempt"] for each in log] == [None, None]


def test_a_secret_that_is_replaced_twice_signs_as_long_as_was_said(server: Server) -> None:
    """A receiver that has the first one still would lose what it is sent."""
    wait = threading.Event().wait
    with listening(OK) as there:
        made = server.endpoint(there.url)
        path = f"/v1/webhook_endpoints/{made.id}/roll_secret"
        old = [made.secret, *(_post(server, path)["secret"] for _ in range(2))]
        server.client.v1.customers.create({"name": "Ada"})
        until(lambda: len(there.requests) == 1, wait)
        headers, body = parse(there.requests[0])
        for secret in old:
            assert stripe.Webhook.construct_event(body, headers["stripe-signature"], secret)

        newest = _post(server, path, overlap_s=0)["secret"]
        server.client.v1.customers.create({"name": "Eva"})
        until(lambda: len(there.requests) == 2, wait)
        headers, body = parse(there.requests[1])
        assert stripe.Webhook.construct_event(body, headers["stripe-signature"], newest)
        for secret in old:
            with pytest.raises(stripe.SignatureVerificationError):
                stripe.Webhook.construct_event(body, headers["stripe-signature"], secret)


def test_failures_are_in_the_log(server: Server) -> None:
    with listening(start_answering("500 Oh", body="broken")) as there:
        made = server.endpoint(there.url)
        server.client.v1.customers.create({"name": "Ada"})
        path = f"/v1/webhook_endpoints/{made.id}/deliveries"
        until(lambda: bool(_get(server, path)["data"][0]["attempts"]), threading.Event().wait)
    [delivery] = _get(server, path)["data"]
    assert delivery["status"] == "pending"
    assert delivery["next_attempt"] >= delivery["created"] + 5
    assert "broken" in delivery["attempts"][0]["error"]


def test_what_cannot_be_sent_again(server: Server) -> None:
    server.client.v1.customers.create({"name": "Ada"})
    [event] = server.client.v1.events.list().data
    made = server.endpoint()
    server.endpoints.update(made.id, {"disabled": True})
    for path, given, param, status in (
        (event.id, "we_unknown", "webhook_endpoint", 400),
        (event.id, made.id, "webhook_endpoint", 400),
        ("evt_unknown", made.id, "id", 404),
    ):
        with pytest.raises(stripe.InvalidRequestError) as told:
            _post(server, f"/v1/events/{path}/retry", webhook_endpoint=given)
        assert (told.value.http_status, told.value.param) == (status, param)


def test_no_event_tells_the_secret(server: Server) -> None:
    made = server.endpoint()
    server.client.v1.customers.create({"name": "Ada"})
    events = server.client.v1.events.list().data
    assert events
    assert made.secret not in json.dumps([event.to_dict() for event in events])


def _post(server: Server, path: str, **params: Any) -> Any:
    return json.loads(server.client.raw_request("post", path, **params).body)


def _get(server: Server, path: str) -> Any:
    return json.loads(server.client.raw_request("get", path).body)
