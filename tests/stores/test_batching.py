"""The queue: pure decisions on which verbs go together."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core import lifecycle
from oncekey._core.lifecycle import Held
from oncekey._core.record import Answer, Claim, State, Step
from oncekey._core.verbs import AppendStep, Find, Insert, Swap, Verb, When
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import BATCH_ROWS_MAX, QUEUE_ROWS_MAX, Queue, Ticket


def insert(record_id: bytes) -> Insert:
    return Insert(Claim(record_id, b"t", "tenant", "op", "key", b"f", 1, 30.0, 600.0))


def renew(record_id: bytes) -> Swap:
    return lifecycle.renew(Held(record_id, 1, b"t"), lease_s=30.0, retention_s=600.0)


def complete(record_id: bytes, body_bytes: int) -> Swap:
    answer = Answer(200, (), bytes(body_bytes))
    return lifecycle.complete(Held(record_id, 1, b"t"), answer, retention_s=600.0)


def append(record_id: bytes, name: str, result: bytes = b"r") -> AppendStep:
    return AppendStep(record_id, 1, b"t", Step(name, b"d", result))


def queue_of(*verbs: Verb, rows_max: int = 4, bytes_max: int = 10_000) -> Queue[int]:
    queue: Queue[int] = Queue(rows_max=rows_max, bytes_max=bytes_max)
    for number, verb in enumerate(verbs):
        queue.add(Ticket(verb, number))
    return queue


def drain(queue: Queue[int]) -> list[list[int]]:
    """The numbers of the verbs, batch by batch."""
    batches = []
    while batch := queue.take():
        batches.append([ticket.waiter for ticket in batch])
    return batches


def test_an_empty_queue_gives_nothing() -> None:
    queue = queue_of()
    assert (queue.take(), len(queue), queue.oldest()) == ([], 0, None)


def test_what_waits_goes_together() -> None:
    queue = queue_of(Find(b"a"), Find(b"b"), Find(b"a"))
    assert len(queue) == 3
    assert drain(queue) == [[0, 1, 2]]


def test_a_batch_has_at_most_so_many_rows() -> None:
    assert drain(queue_of(*(Find(b"a") for _ in range(10)))) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_batch_has_at_most_so_many_bytes() -> None:
    verbs = [complete(bytes((number,)), 4000) for number in range(5)]
    assert drain(queue_of(*verbs)) == [[0, 1], [2, 3], [4]]


def test_results_of_steps_are_bytes_too() -> None:
    verbs = [append(bytes((number,)), "charge", bytes(4000)) for number in range(5)]
    assert drain(queue_of(*verbs)) == [[0, 1], [2, 3], [4]]


def test_a_verb_larger_than_a_batch_goes_alone() -> None:
    verbs: list[Verb] = [Find(b"a"), complete(b"b", 50_000), Find(b"c")]
    assert drain(queue_of(*verbs)) == [[0], [1], [2]]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (insert(b"a"), insert(b"a")),
        (insert(b"a"), renew(b"a")),
        (renew(b"a"), complete(b"a", 1)),
        (append(b"a", "charge"), append(b"a", "charge")),
        (append(b"a", "charge"), complete(b"a", 1)),
    ],
)
def test_p1_one_batch_changes_an_id_once(one: Verb, other: Verb) -> None:
    assert drain(queue_of(one, Find(b"z"), other)) == [[1, 0], [2]]


def test_reading_an_id_is_not_changing_it() -> None:
    assert drain(queue_of(insert(b"a"), Find(b"a"), Find(b"a"))) == [[1, 2, 0]]


def test_a_batch_is_ordered_by_the_ids_that_it_changes() -> None:
    assert drain(queue_of(insert(b"c"), renew(b"a"), Find(b"z"), insert(b"b"))) == [[2, 1, 3, 0]]


def test_whoever_stays_behind_is_first_in_the_next_batch() -> None:
    """However many arrive meanwhile for other ids."""
    queue = queue_of(insert(b"a"), insert(b"a"), insert(b"a"))
    for left_behind in range(3):
        for newcomer in range(4):
            queue.add(Ticket(insert(bytes((left_behind, newcomer))), 100))
        assert left_behind in [ticket.waiter for ticket in queue.take()]


def test_kept_requests_count_as_bytes() -> None:
    claims = [
        Claim(record_id, b"t", "tenant", "op", "key", b"f", 1, 30.0, 600.0, request=bytes(6000))
        for record_id in (b"a", b"b", b"c")
    ]
    released = Swap(b"c", State.RELEASED, 1, b"t", When.ANY, State.RUNNING, True, 600.0)
    again = dataclasses.replace(released, lease_s=30.0, claim=claims[2])
    assert drain(queue_of(Insert(claims[0]), Insert(claims[1]), again)) == [[0], [1], [2]]


def test_the_oldest_is_who_was_left_behind() -> None:
    queue = queue_of(insert(b"a"), insert(b"a"), insert(b"b"))
    queue.take()
    oldest = queue.oldest()
    assert oldest is not None
    assert oldest.waiter == 1


def test_p11_a_full_queue_refuses_and_says_that_nothing_was_sent() -> None:
    queue = queue_of(*(Find(b"a") for _ in range(QUEUE_ROWS_MAX)), rows_max=BATCH_ROWS_MAX)
    with pytest.raises(StoreUnavailable, match="too slow") as caught:
        queue.add(Ticket(Find(b"a"), -1))
    assert caught.value.sent is False
    assert len(queue) == QUEUE_ROWS_MAX
    queue.take()
    queue.add(Ticket(Find(b"a"), -1))


VERBS = st.one_of(
    st.sampled_from([b"a", b"b", b"c", b"d"]).map(insert),
    st.sampled_from([b"a", b"b", b"c", b"d"]).map(renew),
    st.sampled_from([b"a", b"b"]).map(Find),
    st.tuples(st.sampled_from([b"a", b"b"]), st.integers(0, 9000)).map(lambda t: complete(*t)),
)


@given(st.lists(st.one_of(VERBS, st.none()), max_size=60))
def test_every_verb_is_served_once_and_those_of_one_id_in_order(plan: list[Verb | None]) -> None:
    """None stands for a round trip that takes the next batch."""
    queue = queue_of()
    verbs = [verb for verb in plan if verb is not None]
    batches = []
    numbers = iter(range(len(verbs)))
    for verb in plan:
        if verb is None:
            batches.append(queue.take())
        else:
            queue.add(Ticket(verb, next(numbers)))
    while batch := queue.take():
        batches.append(batch)
    served = [ticket.waiter for batch in batches for ticket in batch]
    assert sorted(served) == list(range(len(verbs)))
    for batch in batches:
        changed = [ticket.changes for ticket in batch if ticket.changes is not None]
        assert changed == sorted(set(changed))
        assert len(batch) <= 4
        assert len(batch) == 1 or sum(ticket.size for ticket in batch) <= 10_000
    tickets = [ticket for batch in batches for ticket in batch]
    for record_id in {ticket.changes for ticket in tickets} - {None}:
        order = [ticket.waiter for ticket in tickets if ticket.changes == record_id]
        assert order == sorted(order)
