"""DynamoDB without capacity, or behind a proxy that refuses requests or breaks connections."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError

from oncekey._core.record import Answer, State
from oncekey._core.verbs import Find, Insert, Inserted, Scan
from oncekey.errors import StoreUnavailable
from oncekey.stores.dynamodb.connection import CallAttempts, Driver
from oncekey.stores.dynamodb.server_date import ServerClock
from oncekey.stores.dynamodb.statements import ApiCall
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES
from tests.servers.ministack import table_url
from tests.stores.dynamodb import kit

pytestmark = pytest.mark.slow
LARGE = bytes(range(256)) * 4096


class ThrottlingProxy(ThreadingHTTPServer):
    """A proxy that refuses so many writes for lack of capacity."""

    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyHandler)
        self.endpoint = endpoint
        self.refusals = 0
        self.reads = False
        """Refuse reads of records and their parts instead of writes."""
        self.gateway = False
        """Refuse like a gateway in between."""
        self.halves = False
        """Break the connection in the middle of each response."""
        self.code = "ProvisionedThroughputExceededException"
        self.refused = 0


class _ProxyHandler(BaseHTTPRequestHandler):
    server: ThrottlingProxy
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        reads = self.headers["x-amz-target"].endswith((".GetItem", ".DescribeTable"))
        if reads is self.server.reads and self.server.refusals > 0:
            self.server.refusals -= 1
            self.server.refused += 1
            if self.server.gateway:
                self._respond(502, b"<html>Bad Gateway</html>")
                return
            error_body = json.dumps({"__type": self.server.code, "message": "slow down"}).encode()
            self._respond(400, error_body)
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        request = Request(self.server.endpoint, body, headers, method="POST")  # noqa: S310
        try:
            with urlopen(request, timeout=20) as answer:  # noqa: S310
                self._respond(answer.status, answer.read())
        except HTTPError as refused:
            with refused:
                self._respond(refused.code, refused.read())

    def _respond(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.close_connection = self.server.halves
        self.wfile.write(body[: len(body) // 2] if self.server.halves else body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@pytest.fixture
def proxy(dynamodb_url: str) -> Iterator[ThrottlingProxy]:
    server = ThrottlingProxy(kit.endpoint_of(dynamodb_url))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


CaseBehind = Callable[..., Case]


@pytest.fixture(params=list(FACES))
def case_behind(
    request: pytest.FixtureRequest, proxy: ThrottlingProxy, dynamodb: Subject, dynamodb_url: str
) -> Iterator[CaseBehind]:
    """Return a function that opens a store behind the proxy, with options of its own."""
    endpoint = f"http://127.0.0.1:{proxy.server_port}"
    url = table_url(endpoint, kit.name_of(dynamodb_url))
    with ExitStack() as opened:

        def case(options: str = "") -> Case:
            subject = kit.subject(f"{url}{options}")
            face = opened.enter_context(closing(FACES[request.param](subject.store)))
            return Case(subject, face)

        yield case


@pytest.mark.parametrize(
    "code",
    ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"],
)
def test_p11_what_is_refused_for_want_of_capacity_is_asked_again_for_a_while(
    proxy: ThrottlingProxy, case_behind: CaseBehind, code: str
) -> None:
    case = case_behind("&patience_s=20")
    proxy.code, proxy.refusals = code, 3
    assert case.begin().attempt == 1
    assert proxy.refused == 3


def test_p11_and_then_no_more_and_nothing_was_sent(
    proxy: ThrottlingProxy, case_behind: CaseBehind
) -> None:
    case = case_behind("&patience_s=0.05")
    proxy.refusals = 1_000_000
    claim = case.claim()
    with pytest.raises(StoreUnavailable, match="takes no more for the moment") as lost:
        case.ask(Insert(claim))
    assert not lost.value.sent
    proxy.refusals = 0
    assert case.ask(Find(claim.id)) is None


def test_a_connection_that_is_closed_has_no_sockets_open(
    proxy: ThrottlingProxy, dynamodb_url: str
) -> None:
    """Even while an error that a call ended with is kept."""
    endpoint = f"http://127.0.0.1:{proxy.server_port}"
    url = table_url(endpoint, kit.name_of(dynamodb_url))
    before = set(threading.enumerate())
    face = FACES["sync"](kit.subject(f"{url}&patience_s=0").store)
    with closing(face):
        case = Case(kit.subject(url), face)
        face.ask(Find(case.claim().id))
        proxy.reads, proxy.refusals = True, 1_000_000
        with pytest.raises(StoreUnavailable) as lost:
            face.ask(Find(case.claim().id))
    for serving in set(threading.enumerate()) - before:  # they end with their sockets
        serving.join(20)
        assert not serving.is_alive()
    assert lost.value.__traceback__ is not None


def test_p1_whoever_heard_that_a_record_is_there_was_sent(
    proxy: ThrottlingProxy, case_behind: CaseBehind
) -> None:
    """Otherwise `store_down="run"` would run a completed operation again."""
    case = case_behind("&patience_s=0.05")
    record = case.done(case.complete(case.begin(), Answer(200, (), LARGE)))
    proxy.reads, proxy.refusals = True, 1_000_000
    with pytest.raises(StoreUnavailable, match="takes no more for the moment") as lost:
        case.ask(Insert(case.claim(id=record.id)))
    assert lost.value.sent


def test_p9_what_a_gateway_did_not_pass_on_is_asked_again(
    proxy: ThrottlingProxy, case_behind: CaseBehind
) -> None:
    case = case_behind()
    record = case.begin()
    proxy.gateway, proxy.refusals = True, 1
    with pytest.raises(StoreUnavailable) as lost:
        case.ask(case.complete(record))
    assert lost.value.sent
    case.done(case.complete(record))


@pytest.mark.parametrize("verb", [Find, lambda _: Scan(10)], ids=["find", "scan"])
def test_p9_an_answer_that_was_cut_short_is_none(
    proxy: ThrottlingProxy, case_behind: CaseBehind, verb: Any
) -> None:
    """Otherwise an existing record would not be found."""
    case = case_behind()
    record = case.stage(State.COMPLETED)
    proxy.halves = True
    with pytest.raises(StoreUnavailable) as lost:
        case.ask(verb(record.id))
    assert lost.value.sent
    proxy.halves = False
    case.same(case.find(record.id), record)


def test_p9_what_was_lost_and_then_refused_may_have_been_sent() -> None:
    clock = kit.Ahead()
    driver = Driver(
        "t", ServerClock(clock), clock, {}, timeout_s=1, connect_timeout_s=1, patience_s=0
    )
    attempts = CallAttempts(driver, ApiCall("transact_write_items", {"ClientRequestToken": "t"}))
    lost, delay_s = attempts.handle(OSError("reset"))
    assert isinstance(lost, StoreUnavailable)
    assert delay_s == 0.0
    in_progress = {"Error": {"Code": "TransactionInProgressException", "Message": "wait"}}
    refused, delay_s = attempts.handle(ClientError(in_progress, "TransactWriteItems"))
    assert delay_s is None
    assert isinstance(refused, StoreUnavailable)
    assert refused.sent


def test_of_a_batch_those_that_found_capacity_are_served(
    proxy: ThrottlingProxy, case_behind: CaseBehind
) -> None:
    """Partial results: the others are retried alone."""
    case = case_behind("&patience_s=0")
    claims = [case.claim(id=bytes((0, number)) * 16) for number in range(6)]
    proxy.refusals = 2
    outcomes = case.drive(case.subject.store.perform([Insert(claim) for claim in claims]))
    assert sum(isinstance(outcome, Inserted) for outcome in outcomes) == 4
    assert [case.ask(Find(claim.id)) is None for claim in claims] == [
        not isinstance(outcome, Inserted) for outcome in outcomes
    ]
