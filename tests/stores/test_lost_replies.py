"""P9: whatever is asked of a store, on any engine, by threads or an event loop: each message of it
is lost in turn, before or after the server has carried it out, and asking again puts it right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from oncekey._core.lifecycle import took_effect
from oncekey._core.record import Answer, Glimpse, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Swap,
    Sweep,
    Tally,
    Verb,
)
from oncekey.errors import StoreUnavailable
from oncekey.stores.dynamodb.items import INLINE_BYTES_MAX
from oncekey.testing.contract import Case
from oncekey.testing.contract.subject import FACES, timeless
from tests.servers.redis_cluster import RedisCluster
from tests.servers.skipping import or_skip
from tests.stores.sealed.kit import sealed_subject
from tests.stores.wire import Wire
from tests.stores.wired import ENGINES, Cuttable, behind_wire, cluster_behind_wire

LARGE = bytes(INLINE_BYTES_MAX + 1)
"""More than one message, and more than DynamoDB keeps within a record."""
MESSAGES_MAX = 4
"""Of one question; those that follow are of the same kinds."""
SWEEPS_MAX = 20
EVERYTHING = 1000

Check = Callable[[Any], None]
"""What must be true once the question was answered, by this outcome."""


# ------------------------------------------------------------------------------------ questions


def begin_running(case: Case, **changes: Any) -> Record:
    return case.begin(case.claim(tenant="leaving", **changes))


def make_lapsed(case: Case) -> Record:
    record = begin_running(case, request=b"first")
    case.lapse()
    return case.find(record.id)


def make_expired(case: Case) -> Record:
    record = case.stage(State.COMPLETED)
    case.expire()
    return case.find(record.id)


def step(case: Case) -> AppendStep:
    record = begin_running(case)
    return AppendStep(record.id, record.fence, record.token, Step("charge", b"d", b"r"))


WRITES: dict[str, Callable[[Case], Insert | Swap | AppendStep]] = {
    "insert": lambda case: Insert(case.claim()),
    "insert with a request": lambda case: Insert(case.claim(request=b"POST /orders")),
    "renew": lambda case: case.renew(begin_running(case)),
    "complete": lambda case: case.complete(begin_running(case)),
    "complete with a large body": lambda case: case.complete(
        begin_running(case), Answer(200, (), LARGE)
    ),
    "release": lambda case: case.release(begin_running(case)),
    "take over": lambda case: case.take(make_lapsed(case)),
    "take over with a request": lambda case: case.take(make_lapsed(case), request=b"second"),
    "doubt": lambda case: case.doubt(make_lapsed(case)),
    "give up": lambda case: case.give_up(begin_running(case)),
    "run again": lambda case: case.take(case.stage(State.RELEASED)),
    "start over": lambda case: case.take(make_expired(case)),
    "resolve": lambda case: case.resolve(case.stage(State.UNKNOWN)),
    "resolve as not done": lambda case: case.resolve(case.stage(State.UNKNOWN), None),
    "step": step,
}
READS: dict[str, Callable[[Case], Verb]] = {
    "replay": lambda case: Insert(case.rival(case.stage(State.COMPLETED))),
    "find": lambda case: Find(case.stage(State.COMPLETED).id),
    "peek": lambda case: Peek(begin_running(case).id),
    "steps": lambda case: Steps(begin_running(case).id),
    "requested": lambda case: Requested(begin_running(case, request=b"POST").id),
    "scan": lambda case: Scan(EVERYTHING),
    "count": lambda case: Count(),
    "due": lambda case: Due(EVERYTHING),
    "abandoned": lambda case: Due(EVERYTHING, abandoned=True),
}


def write_and_check(case: Case, name: str) -> tuple[Verb, Check]:
    """A write, which must have happened once."""
    verb = WRITES[name](case)

    def check(outcome: Any) -> None:
        if isinstance(verb, AppendStep):
            assert outcome == Done(verb.fence)
            assert case.ask(Steps(verb.id)) == [verb.step]
            return
        record = case.find(verb.id)
        if isinstance(verb, Insert):
            assert (record.token, record.attempt, record.beat) == (verb.claim.token, 1, 0)
            assert isinstance(outcome, Inserted | Found)
            fence = outcome.fence if isinstance(outcome, Inserted) else outcome.record.fence
            assert fence == record.fence
        else:
            assert_swapped(verb, record, outcome)
        if verb.claim is not None:
            assert case.ask(Requested(verb.id)) == verb.claim.request

    return verb, check


def assert_swapped(verb: Swap, record: Record, outcome: Any) -> None:
    assert record.state is verb.to
    assert record.token == (verb.new_token or verb.token)
    if isinstance(outcome, Refused):
        assert took_effect(verb, outcome.record)
    else:
        assert outcome == Done(record.fence)
    if verb.attempt is not None:
        assert record.attempt == verb.attempt
    if verb.answer is not None:
        assert record.answer == verb.answer


def has_happened(case: Case, verb: Verb) -> bool:
    """Whether anything of a write has happened."""
    if isinstance(verb, AppendStep):
        return bool(case.ask(Steps(verb.id)))
    if not isinstance(verb, Insert | Swap):
        return False
    found = case.ask(Find(verb.id))
    if isinstance(verb, Insert):
        return found is not None and found.token == verb.claim.token
    return (found.state, found.fence, found.token) != (verb.state, verb.fence, verb.token)


def read_and_check(case: Case, name: str) -> tuple[Verb, Check]:
    """A look, which tells the same once more."""
    verb = READS[name](case)

    def check(outcome: Any) -> None:
        assert without_times(outcome) == without_times(case.ask(verb))
        assert outcome is not None

    return verb, check


def without_times(outcome: Any) -> Any:
    """The outcome of a look without what changes by itself."""
    match outcome:
        case Record():
            return timeless(outcome)
        case Glimpse():
            return replace(outcome, lease_left_s=0.0)
        case Found(record):
            return timeless(record)
        case list():
            return [without_times(each) for each in outcome]
    return outcome


def sweep_and_check(case: Case, name: str) -> tuple[Verb, Check]:
    gone = case.stage(State.COMPLETED)
    case.expire()
    live = case.begin()

    def check(outcome: Any) -> None:
        found = case.ask(Find(gone.id))
        for _ in range(SWEEPS_MAX):  # each goes over a part of what there is
            if found is None or case.observed:  # … or leaves it to the server itself
                break
            case.ask(Sweep(EVERYTHING))
            found = case.ask(Find(gone.id))
        assert found is None or found.expired
        case.same(case.find(live.id), live)

    return Sweep(EVERYTHING), check


def purge_and_check(case: Case, name: str) -> tuple[Verb, Check]:
    record = case.stage(State.COMPLETED, case.claim(tenant="leaving"))
    other = case.stage(State.COMPLETED, case.claim(tenant="staying"))

    def check(outcome: Any) -> None:
        blank = case.find(record.id)
        assert (blank.key, blank.state) == ("", State.COMPLETED)
        assert blank.answer is not None
        assert not blank.answer.body
        case.same(case.find(other.id), other)

    return Purge("leaving", EVERYTHING), check


def tally_and_check(case: Case, name: str) -> tuple[Verb, Check]:
    """Counters decide nothing: they may count twice, and the record stays as it is."""
    record = begin_running(case)

    def check(outcome: Any) -> None:
        assert outcome is None
        found = case.find(record.id)
        assert (found.state, found.fence, found.beat) == (record.state, record.fence, record.beat)

    return Tally({record.id: 1}, {}), check


QUESTIONS: dict[str, Callable[[Case, str], tuple[Verb, Check]]] = {
    **dict.fromkeys(WRITES, write_and_check),
    **dict.fromkeys(READS, read_and_check),
    "tally": tally_and_check,
    "sweep": sweep_and_check,
    "purge": purge_and_check,
}


# -------------------------------------------------------------------------------------- engines


@pytest.fixture(scope="module")
def wired_cluster() -> Iterator[tuple[RedisCluster, Wire]]:
    with or_skip(), cluster_behind_wire() as wired:
        yield wired


LOST = ("question", "reply")
_name = pytest.mark.parametrize("name", QUESTIONS)
_face = pytest.mark.parametrize("face", FACES)
_USUAL = [(engine, lost) for engine in ("postgres", "redis", "mariadb") for lost in LOST]
_USUAL += [("dynamodb", "reply")]  # a question takes it ten times as long as others


@_name
@_face
@pytest.mark.slow
@pytest.mark.parametrize(("engine", "lost"), _USUAL)
def test_p9_the_first_message_of_a_question_may_be_lost(
    request: pytest.FixtureRequest, engine: str, face: str, lost: str, name: str
) -> None:
    with behind_wire(engine, request) as wired, closing(FACES[face](wired.subject.store)) as asked:
        lose_each(Case(wired.subject, asked), wired.wire, lost, name, messages=1)


@_name
@_face
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("engine", ENGINES)
def test_p9_each_message_of_a_question_may_be_lost(
    request: pytest.FixtureRequest, engine: str, face: str, lost: str, name: str
) -> None:
    with behind_wire(engine, request) as wired, closing(FACES[face](wired.subject.store)) as asked:
        lose_each(Case(wired.subject, asked), wired.wire, lost, name)


@_name
@_face
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("engine", ENGINES)
def test_p9_each_message_of_a_question_to_a_sealed_store_may_be_lost(
    request: pytest.FixtureRequest, engine: str, face: str, lost: str, name: str
) -> None:
    with behind_wire(engine, request) as wired:
        subject = sealed_subject(wired.subject)
        with closing(FACES[face](subject.store)) as asked:
            lose_each(Case(subject, asked), wired.wire, lost, name)


def lose_each(
    case: Case, wire: Cuttable, lost: str, name: str, messages: int = MESSAGES_MAX
) -> None:
    """The first message of a question, then its second, and so on, as far as it has more."""
    verb, _ = QUESTIONS[name](case, name)
    case.ask(verb)  # undisturbed: from now on it is connected
    for message in range(messages):
        verb, check = QUESTIONS[name](case, name)
        cuts = wire.cuts
        cut = wire.cut_at_next_question if lost == "question" else wire.cut_at_next_reply
        cut(skipped=message)
        outcome = ask_until_answered(case, verb)
        wire.pass_all()
        check(outcome)
        if wire.cuts == cuts:
            assert message > 0
            return


def ask_until_answered(case: Case, verb: Verb) -> Any:
    """The outcome, asked for again if it was lost. What is said not to have been sent was not."""
    try:
        return case.ask(verb)
    except StoreUnavailable as error:
        sent = error.sent
    assert sent or not has_happened(case, verb)
    return case.ask(verb)
