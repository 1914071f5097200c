"""DynamoDB records with many or large parts: how they are changed and removed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from oncekey._core.op import run
from oncekey._core.record import Step
from oncekey._core.verbs import AppendStep, Purge, Steps, Sweep, Verb
from oncekey.errors import CorruptRecord
from oncekey.stores.dynamodb.parts import PIECE_BYTES, step_key
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES
from tests.stores.dynamodb import kit
from tests.stores.dynamodb.cases import Look, case, items

__all__ = ["case", "items"]

pytestmark = pytest.mark.slow
LARGE = bytes(range(256)) * 4096


def test_more_steps_than_a_transaction_holds_are_purged_and_swept(case: Case, items: Look) -> None:
    record = case.begin(case.claim(tenant="leaving"))
    for number in range(103):
        step = Step(f"step-{number}", b"d", b"r")
        case.ask(AppendStep(record.id, record.fence, record.token, step))
    case.done(case.release(record))
    assert case.ask(Purge("leaving", 10)) == 1
    assert {step.result for step in case.ask(Steps(record.id))} == {None}
    case.expire()
    assert case.ask(Sweep(10)) == 1
    assert items(record.id) == []


@pytest.mark.parametrize("verb", [Purge("leaving", 10), Sweep(10)], ids=["purge", "sweep"])
def test_no_transaction_weighs_more_than_amazon_takes(
    dynamodb: Subject, items: Look, verb: Verb
) -> None:
    """4 MB for all items that it names, perhaps including those that it only removes."""
    with closing(FACES["sync"](dynamodb.store)) as face, closing(dynamodb.store.connect()) as line:
        case, weights = Case(dynamodb, face), []
        record = case.begin(case.claim(tenant="leaving"))
        for number in range(13):
            step = Step(f"step-{number}", b"d", bytes(PIECE_BYTES - 100))
            case.ask(AppendStep(record.id, record.fence, record.token, step))
        case.done(case.release(record))
        if isinstance(verb, Sweep):
            case.expire()
        weigh = {item["part"]["B"]: _weight(item) for item in items(record.id)}

        def ask(question: Any) -> Any:
            members = question[0].parameters.get("TransactItems", [])
            named = [write["Key"]["part"]["B"] for each in members for write in each.values()]
            weights.append(sum(map(weigh.__getitem__, named)))
            return line.ask(question)

        assert run(dynamodb.store.perform([verb]), ask) == [1]
    assert 0 < max(weights) <= 4_000_000
    assert all(_weight(item) < PIECE_BYTES // 2 for item in items(record.id))


def _weight(item: dict[str, Any]) -> int:
    return sum(len(name) + len(found.get("B", b"a number")) for name, found in item.items())


def test_a_long_result_is_in_pieces_that_go_with_its_step(case: Case, items: Look) -> None:
    record = case.begin(case.claim(tenant="leaving"))
    long, short = Step("fetch", b"d", LARGE), Step("charge", b"d", b"r")
    for step in (long, short):
        case.ask(AppendStep(record.id, record.fence, record.token, step))
    assert case.ask(Steps(record.id)) == [long, short]
    unknown = case.done(case.give_up(record))
    released = case.done(case.resolve(unknown, None))  # forgets steps that were only begun
    assert case.ask(Steps(record.id)) == [long, short]
    assert case.ask(Purge("leaving", 10)) == 1
    assert [step.result for step in case.ask(Steps(record.id))] == [None, None]
    assert [item["part"]["B"][:1] for item in items(record.id)] == [b"r", b"s", b"s"]
    again = case.done(case.take(released))
    for step in (long, replace(long, result=b"less")):
        case.ask(AppendStep(again.id, again.fence, again.token, step))
        assert case.ask(Steps(again.id))[0] == step
    case.expire()
    assert case.ask(Sweep(10)) == 1
    assert items(record.id) == []


def test_a_result_that_lost_a_piece_is_not_guessed_at(case: Case, dynamodb_url: str) -> None:
    record, step = case.begin(), Step("fetch", b"d", LARGE)
    case.ask(AppendStep(record.id, record.fence, record.token, step))
    part = step_key(record.fence, "fetch") + b"\x00\x01"
    kit.client(dynamodb_url).delete_item(
        TableName=kit.name_of(dynamodb_url),
        Key={"id": {"B": record.id}, "part": {"B": part}},
    )
    with pytest.raises(CorruptRecord, match="missing"):
        case.ask(Steps(record.id))
