"""The courier: every event reaches every endpoint that wanted it, at least once; all is logged."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import standardwebhooks
import stripe

from oncekey.webhooks import Answered, NotSent, Schedule, new_secret
from payments import clock
from payments.settings import Settings
from payments.storage import ids, rows
from payments.storage.tables import deliveries as delivery_rows
from payments.storage.tables import events as event_rows
from payments.webhooks import deliveries
from payments.webhooks.delivery_slots import DeliverySlots
from payments.webhooks.senders import Senders
from tests.payments.delivery_setup import DeliverySetup, delivery_setup, post, until
from tests.webhooks.listeners import PATIENCE_S, Listener, listening

__all__ = ["post"]

OTHER = "http://127.0.0.1:2/"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def parse(request: bytes) -> tuple[dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line.split(": ", 1) for line in head.decode().split("\r\n")[1:]]
    return {name.lower(): text for name, text in lines}, body


def start_answering(status: str, *headers: str, body: str = "") -> bytes:
    lines = (f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", body)
    return "\r\n".join(lines).encode()


# ------------------------------------------------------------------------------------ delivering


def test_an_event_is_delivered_signed_both_ways(post: DeliverySetup) -> None:
    secret = new_secret()
    with listening(OK) as there:
        post.endpoint(there.url, secrets=[{"secret": secret, "until": None}])
        event = post.event(amount=5)
        assert post.worker().drain() == 1
    [request] = there.requests
    headers, body = parse(request)

    told = stripe.Webhook.construct_event(body, headers["stripe-signature"], secret)
    assert (told["id"], told["type"], told["data"]["object"]["amount"]) == (
        *(event, "charge.succeeded"),
        5,
    )
    assert standardwebhooks.Webhook(secret).verify(body, headers)["id"] == event
    assert headers["webhook-id"] == event
    [delivery] = post.deliveries()
    assert (delivery.status, delivery.attempts, delivery.due) == ("delivered", 1, None)
    [attempt] = post.attempts()
    assert (attempt.status, attempt.error) == (200, None)
    assert post.worker().drain() == 0


def test_only_who_wants_an_event_is_told(post: DeliverySetup) -> None:
    with listening(OK) as charges, listening(OK) as all_:
        post.endpoint(charges.url, "charge.succeeded", "charge.failed")
        post.endpoint(all_.url, "*")
        post.event("charge.succeeded")
        post.event("customer.created")
        post.worker().drain()
    assert (len(charges.requests), len(all_.requests)) == (1, 2)


def test_what_is_rolled_back_is_never_sent(post: DeliverySetup) -> None:
    from payments.webhooks import events

    def start_failing() -> None:
        with post.database.begin() as connection:
            events.record(connection, post.tenant, "charge.succeeded", {}, None)
            raise ZeroDivisionError

    with listening(OK) as there:
        post.endpoint(there.url)
        with pytest.raises(ZeroDivisionError):
            start_failing()
        assert post.worker().drain() == 0
    assert there.requests == []


def test_what_was_written_while_the_clock_was_ahead_is_sent(post: DeliverySetup) -> None:
    """When it is set right, that would be due in weeks."""
    waits = (Schedule().delay_s(attempts, 1.0) or 0.0 for attempts in range(1, 20))
    assert max(waits) < deliveries.FAR_S
    with listening(OK) as there:
        post.endpoint(there.url)
        post.event()
        post.ahead_s = -20 * 86_400.0
        assert post.worker().drain() == 1
    [delivery] = post.deliveries()
    assert delivery.status == "delivered"


def test_while_a_secret_is_replaced_both_sign(post: DeliverySetup) -> None:
    old, new, past = new_secret(), new_secret(), new_secret()
    secrets = [
        {"secret": past, "until": clock.wall() - 1},
        {"secret": old, "until": clock.wall() + 60},
        {"secret": new, "until": None},
    ]
    with listening(OK) as there:
        post.endpoint(there.url, secrets=secrets)
        post.event()
        post.worker().drain()
    headers, body = parse(there.requests[0])
    for secret in (old, new):
        stripe.Webhook.construct_event(body, headers["stripe-signature"], secret)
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(body, headers["stripe-signature"], past)


# ------------------------------------------------------------------------------------- failing


def test_the_schedule_is_kept_and_ends(post: DeliverySetup) -> None:
    with listening(start_answering("500 Oh", body="no\0pe")) as there:
        post.endpoint(there.url)
        post.event()
        worker = post.worker()
        for waited_s in (0.0, 10.0, 100.0):
            post.ahead_s += max(0.0, waited_s - 2.0)
            assert worker.drain() == (0 if waited_s else 1)  # not too early …
            if waited_s:
                post.ahead_s += 3.0
                assert worker.drain() == 1  # … and not too late
        post.ahead_s += 1e6
        assert worker.drain() == 0
    [delivery] = post.deliveries()
    assert (delivery.status, delivery.attempts, delivery.due) == ("failed", 3, None)
    assert [row.status for row in post.attempts()] == [500, 500, 500]
    assert "answered 500: nope" in delivery.last_error


def test_it_succeeds_in_the_end(post: DeliverySetup) -> None:
    answers = [start_answering("503 Later", "Retry-After: 50"), OK]
    with listening(lambda connection: connection.sendall(answers.pop(0))) as there:
        post.endpoint(there.url)
        post.event()
        worker = post.worker()
        worker.drain()
        post.ahead_s = 40.0  # the schedule says 10 s, the endpoint asked for 50
        assert worker.drain() == 0
        post.ahead_s = 60.0
        assert worker.drain() == 1
    assert [row.status for row in post.attempts()] == [503, 200]
    assert post.deliveries()[0].status == "delivered"
    assert post.endpoints()[0].failing_since is None
    ids = {parse(request)[0]["webhook-id"] for request in there.requests}
    assert len(ids) == 1


def test_redirects_are_failures(post: DeliverySetup) -> None:
    with (
        listening(OK) as trap,
        listening(start_answering("302 Found", f"Location: {trap.url}")) as there,
    ):
        post.endpoint(there.url)
        post.event()
        post.worker().drain()
    assert trap.requests == []
    assert post.attempts()[0].status == 302
    assert post.deliveries()[0].status == "pending"


def test_private_addresses_are_not_sent_to_unless_allowed(post: DeliverySetup) -> None:
    with listening(OK) as there:
        post.endpoint(there.url)
        post.event()
        strict = Senders(Settings())
        assert post.worker(strict).drain() == 1
    assert there.requests == []
    assert "not a public address" in post.deliveries()[0].last_error


def test_plain_http_is_for_test_mode_alone(post: DeliverySetup) -> None:
    post.tenant = post.tenant.replace("/test", "/live")
    with listening(OK) as there:
        post.endpoint(there.url)
        post.event()
        post.worker().drain()
    assert there.requests == []
    assert "https://" in post.deliveries()[0].last_error


def test_an_endpoint_that_is_dead_for_days_is_disabled_and_an_event_says_so(
    post: DeliverySetup,
) -> None:
    with listening(OK) as well, listening(start_answering("500 Oh")) as dead:
        there = post.endpoint(dead.url, "charge.succeeded")
        post.endpoint(well.url, "webhook_endpoint.disabled")
        worker = post.worker(dead_s=86_400.0)
        post.event()
        worker.drain()
        post.ahead_s = 86_500.0
        worker.drain()
        [told] = [event for event in post.events() if event.type == "webhook_endpoint.disabled"]
        assert told.data["id"] == there
        assert "secret" not in json.dumps(told.data)
        assert {row.id: row.status for row in post.endpoints()}[there] == "disabled"
        post.event()  # nobody is told
        post.ahead_s *= 2
        worker.drain()
    assert len(dead.requests) == 2
    assert len(well.requests) == 1
    assert [row.status for row in post.deliveries()] == ["canceled", "delivered"]


def test_an_endpoint_that_is_gone_is_disabled_at_once(post: DeliverySetup) -> None:
    with listening(start_answering("410 Gone")) as there:
        post.endpoint(there.url)
        post.event()
        post.worker().drain()
    assert post.endpoints()[0].status == "disabled"
    assert post.deliveries()[0].status == "failed"


def test_what_waits_for_a_disabled_endpoint_is_canceled(post: DeliverySetup) -> None:
    with listening(OK) as there:
        endpoint = post.endpoint(there.url)
        post.event()
        post.change(endpoint, status="disabled")
        assert post.worker().drain() == 0
    assert there.requests == []
    assert post.deliveries()[0].status == "canceled"


def test_much_that_waits_for_a_disabled_endpoint_holds_up_nobody(post: DeliverySetup) -> None:
    gone = post.endpoint("http://127.0.0.1:1/", "charge.failed")
    at = {"tenant": post.tenant, "created": 1, "event": "evt_1", "due": post.now() - 10.0}
    with post.database.begin() as connection:
        made = [{**at, "id": ids.new("dlv"), "endpoint": gone} for _ in range(300)]
        connection.execute(delivery_rows.insert(), made)
    post.change(gone, status="disabled")
    with listening(OK) as there:
        post.endpoint(there.url)
        post.event()
        worker = post.worker()
        assert worker.drain() == 1
    counts = Counter(row.status for row in post.deliveries())
    assert counts["delivered"] == 1
    assert counts["canceled"] >= deliveries.CANCELED_MAX
    worker.drain()
    assert Counter(row.status for row in post.deliveries()) == {"delivered": 1, "canceled": 300}


def test_a_delivery_that_kills_its_workers_ends(post: DeliverySetup) -> None:
    with listening(OK) as there:
        post.endpoint(there.url)
        post.event()
        for attempt in range(3):
            with post.database.begin() as connection:
                [taken] = _claim(post, connection)
                assert taken.attempts == attempt + 1
            post.ahead_s += 100.0  # its worker is dead, its lease over
        assert post.worker().drain() == 0
    assert there.requests == []
    assert post.deliveries()[0].last_error == deliveries.DIED


def _claim(
    post: DeliverySetup, connection: object, slots: DeliverySlots | None = None
) -> list[deliveries.ClaimedDelivery]:
    return deliveries.claim(
        connection,  # type: ignore[arg-type]
        post.now(),
        slots=slots or DeliverySlots(10, 10),
        lease_s=90.0,
        attempts_max=3,
    )


# ------------------------------------------------------------------------------------- together


@pytest.mark.slow
def test_many_couriers_share_the_work_and_send_nothing_twice(post: DeliverySetup) -> None:
    with listening(OK) as there:
        for _ in range(3):
            post.endpoint(there.url)
        sent = {post.event() for _ in range(10)}
        workers = [post.worker() for _ in range(4)]
        threads = [threading.Thread(target=worker.drain) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert {row.status for row in post.deliveries()} == {"delivered"}
    ids = [parse(request)[0]["webhook-id"] for request in there.requests]
    assert len(ids) == 30
    assert set(ids) == sent


@contextmanager
def start_hanging() -> Iterator[tuple[Listener, threading.Event]]:
    """An endpoint that answers when it is told to."""
    go_on = threading.Event()

    def answer(connection: socket.socket) -> None:
        go_on.wait(PATIENCE_S)
        connection.sendall(OK)

    with listening(answer) as there:
        try:
            yield there, go_on
        finally:
            go_on.set()


@pytest.mark.slow
def test_one_endpoint_that_hangs_does_not_hold_up_the_others(post: DeliverySetup) -> None:
    wait = threading.Event().wait
    with start_hanging() as (slow, go_on), listening(OK) as well:
        post.endpoint(slow.url, "charge.failed")
        post.endpoint(well.url, "charge.succeeded")
        for _ in range(20):
            post.event("charge.failed")
        post.event("charge.succeeded")
        worker = post.worker(concurrency_max=5, per_endpoint_max=2)
        worker.start()
        # The slow one takes one connection at a time. Which of them reads first nobody can say.
        until(lambda: (len(slow.requests), len(well.requests)) == (1, 1), wait)
        go_on.set()
        until(lambda: {row.status for row in post.deliveries()} == {"delivered"}, wait)
        worker.stop()
    assert len(slow.requests) == 20


def test_p11_what_waits_for_a_busy_endpoint_is_not_looked_at(tmp_path: Path) -> None:
    """Whoever looks through it holds up all who write to SQLite, and works for nothing."""

    def looks(post: DeliverySetup, waiting: int) -> int:
        """How much work it is to claim for others what is due, in steps of SQLite."""
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        busy, well = post.endpoint("http://127.0.0.1:1/", "charge.failed"), post.endpoint(OTHER)
        at = {"tenant": post.tenant, "created": 1, "event": "evt_1", "due": post.now() - 10.0}
        made = [{**at, "id": ids.new("dlv"), "endpoint": busy} for _ in range(waiting)]
        slots = DeliverySlots(32, 1)
        with post.database.begin() as connection:
            connection.execute(delivery_rows.delete())
            connection.execute(delivery_rows.insert(), made)
            [first] = _claim(post, connection, slots)
            assert first.endpoint == busy
            due = {"id": "dlv_1", "endpoint": well}
            connection.execute(delivery_rows.insert(), [at | due])
            driver: Any = connection.connection.driver_connection
            driver.set_progress_handler(step, 10)
            [claimed] = _claim(post, connection, slots)
            driver.set_progress_handler(None, 0)
        assert claimed.endpoint == well
        return steps

    with delivery_setup("", tmp_path) as post:
        assert looks(post, 5_000) < 2 * looks(post, 50)


@pytest.mark.slow
def test_p11_an_account_whose_endpoints_all_hang_does_not_hold_up_another(
    post: DeliverySetup,
) -> None:
    wait, held_up = threading.Event().wait, post.tenant
    with ExitStack() as stack:
        hang = [stack.enter_context(start_hanging()) for _ in range(8)]
        well = stack.enter_context(listening(OK))
        for there, _ in hang:
            post.endpoint(there.url)
        for _ in range(8):
            post.event()
        worker = post.worker()
        worker.start()
        until(lambda: all(there.requests for there, _ in hang), wait)

        post.tenant = held_up.replace("acct_", "acct_another_")
        post.endpoint(well.url)
        for _ in range(3):
            post.event()
        until(lambda: [row.status for row in post.deliveries()] == ["delivered"] * 3, wait)

        post.tenant = held_up
        assert post.attempts() == []  # all of them hang still
        for _, go_on in hang:
            go_on.set()
        worker.stop()


def test_no_courier_outlives_its_test(tmp_path: Path) -> None:
    """Also of one that failed. Neighbours on the same database would find nothing to deliver."""
    before = set(threading.enumerate())

    def fail() -> None:
        with delivery_setup("", tmp_path) as post:
            post.worker().start()
            draining = threading.Thread(target=post.worker().drain)
            with start_hanging() as (there, _):
                post.endpoint(there.url)
                post.event()
                draining.start()
                until(lambda: bool(there.requests), threading.Event().wait)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_it_leaves_connections_to_those_who_pay(post: DeliverySetup) -> None:
    held, most, guard = 0, 0, threading.Lock()

    def count_sends(by: int) -> Callable[..., None]:
        def count(*_: Any) -> None:
            nonlocal held, most
            with guard:
                held += by
                most = max(most, held)

        return count

    with listening(OK) as there:
        for _ in range(12):
            post.endpoint(there.url)
        post.event()
        sa.event.listen(post.database.engine, "checkout", count_sends(1))
        sa.event.listen(post.database.engine, "checkin", count_sends(-1))
        assert post.worker(connections_max=1).drain() == 12
    assert most <= 2  # one to look for what is due


def test_stopping_waits_for_what_is_under_way_and_takes_no_more(post: DeliverySetup) -> None:
    with start_hanging() as (there, go_on):
        post.endpoint(there.url)
        for _ in range(3):
            post.event()
        worker = post.worker(concurrency_max=1)
        worker.start()
        until(lambda: len(there.requests) == 1, threading.Event().wait)
        stopping = threading.Thread(target=worker.stop)
        stopping.start()
        assert stopping.is_alive()
        go_on.set()
        stopping.join(PATIENCE_S)
        assert not stopping.is_alive()
    assert sorted(row.status for row in post.deliveries()) == ["delivered", "pending", "pending"]
    assert len(there.requests) == 1


@pytest.mark.slow
def test_a_round_that_fails_is_not_the_last(
    post: DeliverySetup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where no thread can be started: nobody else in this process sends webhooks."""
    submit, start_failing = ThreadPoolExecutor.submit, [RuntimeError("can't start new thread")]

    def submits(threads: ThreadPoolExecutor, *work: Any) -> Any:
        if start_failing:
            raise start_failing.pop()
        return submit(threads, *work)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submits)
    worker = post.worker()
    with listening(OK) as there:
        post.endpoint(there.url)
        post.event()
        worker.start()
        until(lambda: "cannot claim deliveries" in caplog.text, threading.Event().wait)
        later = post.event()
        until(lambda: len(there.requests) == 1, threading.Event().wait)
        worker.stop()
    assert parse(there.requests[0])[0]["webhook-id"] == later


def test_a_worker_that_was_too_slow_changes_nothing_that_another_has_begun(
    post: DeliverySetup,
) -> None:
    post.endpoint("http://127.0.0.1:1/")
    post.event()
    with post.database.begin() as connection:
        [slow] = _claim(post, connection)
    post.ahead_s = 91.0  # its lease is over
    with post.database.begin() as connection:
        [other] = _claim(post, connection)

    late, ending = (
        NotSent("nobody listens", 80.0),
        deliveries.DeliveryOutcome("failed", None, is_gone=True),
    )
    with post.database.begin() as connection:
        assert not deliveries.record_attempt(connection, slow, late, ending, post.now(), dead_s=0.0)
    [delivery] = post.deliveries()
    assert (delivery.status, delivery.attempts, delivery.last_error) == ("pending", 2, None)
    assert post.endpoints()[0].status == "enabled"

    done, ending = Answered(200, b"", None, 1.0), deliveries.DeliveryOutcome("delivered", None)
    with post.database.begin() as connection:
        assert deliveries.record_attempt(connection, other, done, ending, post.now(), dead_s=0.0)
    assert post.deliveries()[0].status == "delivered"
    assert [row.status for row in post.attempts()] == [None, 200]  # both are in the log


def test_an_attempt_that_cannot_be_recorded_is_made_again(
    post: DeliverySetup, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(OK) as there:
        post.endpoint(there.url, secrets=[{"secret": "whsec_", "until": None}])
        post.event()
        with caplog.at_level(logging.ERROR):
            assert post.worker().drain() == 1
        assert "will be sent again" in caplog.text
        post.change(post.endpoints()[0].id, secrets=[{"secret": new_secret(), "until": None}])
        assert post.worker().drain() == 0
        post.ahead_s = 91.0
        assert post.worker().drain() == 1
    assert len(there.requests) == 1


# ------------------------------------------------------------------------------------ sent again


def test_an_event_can_be_sent_again(post: DeliverySetup) -> None:
    with listening(OK) as there, listening(OK) as other:
        endpoint = post.endpoint(there.url)
        post.endpoint(other.url, "charge.succeeded")
        id_ = post.event("customer.created")
        post.worker().drain()
        with post.database.begin() as connection:
            event = rows.get(connection, event_rows, post.tenant, id_)
            made = deliveries.send_again(connection, post.tenant, event, None, post.now())
            assert len(made) == 1  # the other does not want it
            deliveries.send_again(connection, post.tenant, event, endpoint, post.now())
        post.worker().drain()
    assert [parse(request)[0]["webhook-id"] for request in there.requests] == [id_] * 3
    assert other.requests == []
