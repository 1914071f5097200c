"""Events become measurements, with bounded labels, from the real engine's own events."""

import dataclasses
import threading
from collections import Counter

import pytest

from oncekey import events
from oncekey._core.fingerprint import VERSION, Fingerprint
from oncekey._core.op import Op, Pause, run
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind
from oncekey._core.reasons import LossKind
from oncekey._core.record import Answer
from oncekey._core.verbs import Verb
from oncekey._engine.guard import Call, Execute, Guard
from oncekey._engine.heartbeat import Heartbeat
from oncekey._engine.lease import Phase
from oncekey._system.clock import FakeClock
from oncekey.errors import StoreUnavailable
from oncekey.metrics import _catalogue as catalogue
from oncekey.metrics._catalogue import CATALOGUE, Metric
from oncekey.metrics._measurements import OTHER, Measure
from oncekey.stores.connection import StoreConnection
from oncekey.stores.memory import MemoryConnection, MemoryStore
from tests.metrics.samples import KINDS, OPERATION, one_of_each, sample

POLICY = Policy(lease_s=10.0, retention_s=1000.0).settled()
CALL = Call("acme", OPERATION, "key-1", Fingerprint(VERSION, b"f" * 32))


class Tally:
    """A hook that adds up what is measured."""

    def __init__(self) -> None:
        self._measure = Measure()
        self.sums: Counter[tuple[Metric, tuple[str, ...]]] = Counter()

    def __call__(self, event: events.Event) -> None:
        for metric, value, labels in self._measure(event):
            self.sums[metric, labels] += value  # type: ignore[assignment]  # some are fractions

    def of(self, metric: Metric, *labels: str) -> float:
        return self.sums[metric, labels]


# ------------------------------------------------------------------------ labels


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_event_is_measured(kind: type[events.Event]) -> None:
    measured = [m for m in Measure()(sample(kind)) if m.value]

    assert measured
    assert all(m.metric in CATALOGUE for m in measured)


def test_every_metric_is_measured_by_some_event() -> None:
    measure = Measure()

    measured = {m.metric for event in one_of_each() for m in measure(event) if m.value}

    assert measured == set(CATALOGUE)


def test_labels_have_as_many_values_as_names() -> None:
    measure = Measure()

    for event in one_of_each():
        for metric, _, labels in measure(event):
            assert len(labels) == len(metric.labels)


def test_p11_operations_after_the_bound_are_other() -> None:
    measure = Measure(operations_max=3)

    labels = [
        m.labels[0]
        for number in range(10)
        for m in measure(sample(events.Replayed, operation=f"GET /{number}"))
        if m.metric is catalogue.REPLAYS
    ]

    assert labels == ["GET /0", "GET /1", "GET /2"] + [OTHER] * 7


def test_p11_what_is_refused_before_its_key_is_looked_up_takes_no_label_from_others() -> None:
    """Anybody can send it, to any path: the operations of others would all become "other"."""
    measure = Measure(operations_max=1)
    stranger = events.Declined("POST /nowhere", "", "no-tenant")
    known = events.Declined("POST /orders", "", "missing-key")

    assert measure(stranger) == [(catalogue.REFUSALS, 1, (OTHER, "no-tenant"))]
    measure(sample(events.Replayed, operation="POST /orders"))
    assert measure(known) == [(catalogue.REFUSALS, 1, ("POST /orders", "missing-key"))]


def test_p11_the_bound_holds_for_many_threads() -> None:
    measure = Measure(operations_max=50)
    seen: list[str] = []

    def ask(thread: int) -> None:
        for number in range(200):
            event = sample(events.OutcomeUnknown, operation=f"{thread}/{number}")
            seen.extend(m.labels[0] for m in measure(event) if m.value)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(seen)) == 51
    assert len(seen) == 800


@pytest.mark.parametrize(
    ("event", "metric", "label"),
    [
        (sample(events.Declined, reason="made up"), catalogue.REFUSALS, OTHER),
        (sample(events.Declined, reason="mismatch"), catalogue.REFUSALS, "mismatch"),
        (sample(events.LeaseWasLost, reason="made up"), catalogue.LEASE_LOSSES, OTHER),
        (sample(events.StoreAsked, error="made up"), catalogue.STORE_ERRORS, OTHER),
        (sample(events.Completed, status=999), catalogue.COMPLETIONS, OTHER),
        (sample(events.Completed, status=404), catalogue.COMPLETIONS, "4xx"),
        (sample(events.Attempted, gave_up="made up"), catalogue.CLIENT_GIVEN_UP, OTHER),
    ],
    ids=lambda value: str(getattr(value, "name", value))[:40],
)
def test_p11_no_label_takes_what_it_does_not_know(
    event: events.Event, metric: Metric, label: str
) -> None:
    [labels] = [m.labels for m in Measure()(event) if m.metric is metric and m.value]

    assert labels[1] == label


@pytest.mark.parametrize("kind", list(Kind))
def test_every_refusal_has_its_own_label(kind: Kind) -> None:
    [labels] = [
        m.labels
        for m in Measure()(sample(events.Declined, reason=str(kind)))
        if m.metric is catalogue.REFUSALS
    ]

    assert labels == (OPERATION, str(kind))


@pytest.mark.parametrize("kind", list(LossKind))
def test_every_lost_lease_has_its_own_label(kind: LossKind) -> None:
    """However its sentence is worded: three of them were "other"."""
    [labels] = [
        m.labels
        for m in Measure()(sample(events.LeaseWasLost, reason="made up", kind=kind))
        if m.metric is catalogue.LEASE_LOSSES and m.value
    ]

    assert labels == (OPERATION, str(kind))


def test_what_alerts_watch_is_there_before_it_happens() -> None:
    measure = Measure()

    first = [*measure(sample(events.Started)), *measure(sample(events.StoreAsked))]
    again = [*measure(sample(events.Started)), *measure(sample(events.StoreAsked))]

    zeros = {m.metric for m in first if m.value == 0}
    assert zeros == {
        catalogue.UNKNOWN_OUTCOMES,
        catalogue.TAKE_OVERS,
        catalogue.LEASE_LOSSES,
        catalogue.STORE_ERRORS,
    }
    assert not [m for m in again if m.value == 0]


def test_a_client_s_operations_are_bounded_by_themselves() -> None:
    measure = Measure(operations_max=1)

    served = measure(sample(events.Started, operation="POST /orders"))
    first = measure(sample(events.Attempted, operation="POST api.test"))
    other = measure(sample(events.Attempted, operation="POST else.test"))

    assert {m.labels[0] for m in served} == {"POST /orders"}
    assert {m.labels[0] for m in first} == {"POST api.test"}
    assert {m.labels[0] for m in other} == {OTHER}
    assert {m.metric for m in first if m.value == 0} == {
        catalogue.CLIENT_MISMATCHES,
        catalogue.CLIENT_GIVEN_UP,
    }


# ------------------------------------------------------------------------ the real engine


class Broken(MemoryStore):
    """A store that cannot be reached while `down`."""

    down = False

    def connect(self) -> MemoryConnection:
        if self.down:
            raise StoreUnavailable("down", sent=False)
        return super().connect()


class Service:
    """The engine with a memory store, driven by hand."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tally = Tally()
        self.store = Broken(self.clock)
        self.guard = Guard(clock=self.clock, hooks=events.Hooks([self.tally]))

    def drive(self, op: Op[object]) -> object:
        line = StoreConnection(self.store)

        def ask(question: Verb | Pause) -> object:
            if isinstance(question, Pause):
                self.clock.advance(question.seconds)
                return None
            return line.perform([question])[0]

        return run(op, ask)

    def begin(self, call: Call = CALL, policy: Policy = POLICY) -> object:
        return self.drive(self.guard.begin(call, policy))

    def execute(self, policy: Policy = POLICY) -> Execute:
        decision = self.begin(policy=policy)
        assert isinstance(decision, Execute)
        return decision

    def finish(self, execute: Execute) -> object:
        return self.drive(self.guard.ownership.finish(execute.attempt, Answer(201), CALL))


@pytest.fixture
def service() -> Service:
    return Service()


def test_a_first_run_and_its_retries(service: Service) -> None:
    execute = service.execute()
    service.begin()
    service.clock.advance(2.0)
    service.finish(execute)
    service.clock.advance(40.0)
    service.begin()
    service.begin(Call("acme", OPERATION, "key-1", Fingerprint(VERSION, b"x" * 32)))

    of = service.tally.of
    assert of(catalogue.ATTEMPTS, OPERATION, "first") == 1
    assert of(catalogue.REFUSALS, OPERATION, "in-flight") == 1
    assert of(catalogue.COMPLETIONS, OPERATION, "2xx", "kept") == 1
    assert of(catalogue.RUN_DURATION, OPERATION) == pytest.approx(2.0)
    assert of(catalogue.REPLAYS, OPERATION) == 1
    assert of(catalogue.RETRY_WAIT, OPERATION, "replayed") == pytest.approx(42.0)
    assert (catalogue.RETRY_WAIT, (OPERATION, "ran")) not in service.tally.sums
    assert of(catalogue.RETRIES_PER_KEY, OPERATION) == 1
    assert of(catalogue.REFUSALS, OPERATION, "mismatch") == 1


def test_a_take_over_and_the_late_completion(service: Service) -> None:
    late = service.execute()
    service.clock.advance(11.0)
    second = service.execute()
    service.finish(late)
    service.clock.advance(1.0)
    service.finish(second)

    of = service.tally.of
    assert of(catalogue.TAKE_OVERS, OPERATION) == 1
    assert of(catalogue.ATTEMPTS, OPERATION, "later") == 1
    assert of(catalogue.LEASE_LOSSES, OPERATION, "refused-at-completion") == 1
    assert of(catalogue.RETRY_WAIT, OPERATION, "ran") == pytest.approx(12.0)


def test_a_renewal_after_a_take_over(service: Service) -> None:
    late = service.execute()
    service.clock.advance(11.0)
    service.execute()
    [refused] = StoreConnection(service.store).perform(
        [service.guard.ownership.renewal(late.attempt)]
    )
    service.guard.ownership.record_renewal(late.attempt, refused, service.clock.monotonic())

    assert service.tally.of(catalogue.LEASE_LOSSES, OPERATION, "taken-over") == 1


def test_an_unknown_outcome(service: Service) -> None:
    policy = dataclasses.replace(POLICY, recovery="block")
    service.execute(policy)
    service.clock.advance(11.0)
    service.begin(policy=policy)

    assert service.tally.of(catalogue.UNKNOWN_OUTCOMES, OPERATION) == 1
    assert service.tally.of(catalogue.REFUSALS, OPERATION, "outcome-unknown") == 1


def test_releases(service: Service) -> None:
    service.drive(service.guard.ownership.abandon(service.execute().attempt, no_effect=True))
    service.drive(service.guard.ownership.abandon(service.execute().attempt, no_effect=False))

    assert service.tally.of(catalogue.RELEASES, OPERATION, "failure") == 1
    assert service.tally.of(catalogue.RELEASES, OPERATION, "no-effect") == 1


def test_a_store_that_does_not_answer(service: Service) -> None:
    service.store.down = True
    service.begin()

    assert service.tally.of(catalogue.STORE_ERRORS, "insert", "not-sent") > 0
    assert service.tally.of(catalogue.REFUSALS, OPERATION, "store-unavailable") == 1


@pytest.mark.parametrize(
    ("down", "later_s", "reason"), [(False, 10_000.0, "ran-too-long"), (True, 9.5, "not-renewed")]
)
def test_leases_lost_by_the_heartbeat(
    service: Service, down: bool, later_s: float, reason: str
) -> None:
    execute = service.execute()
    service.store.down = down
    service.clock.advance(later_s)
    lost = threading.Event()
    execute.attempt.on_lost(lost.set)
    heartbeat = Heartbeat(service.store, service.guard.ownership, service.clock)
    heartbeat.add(execute.attempt)
    try:
        assert lost.wait(10.0)
        execute.attempt.lease.move(Phase.ENDED)
    finally:
        heartbeat.stop()

    assert service.tally.of(catalogue.LEASE_LOSSES, OPERATION, reason) == 1
