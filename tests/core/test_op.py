"""Operations: one generator, driven by blocking calls or by awaited ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from oncekey._core.op import Op, Pause, arun, relay, run

Drive = Callable[[Op[Any], Callable[[Any], Any]], Any]


def drive_async(op: Op[Any], ask: Callable[[Any], Any]) -> Any:
    async def aask(question: Any) -> Any:
        await asyncio.sleep(0)
        return ask(question)

    return asyncio.run(arun(op, aask))


@pytest.fixture(params=[run, drive_async], ids=["sync", "async"])
def drive(request: pytest.FixtureRequest) -> Drive:
    driver: Drive = request.param
    return driver


def test_an_operation_is_sent_the_answers_to_its_questions(drive: Drive) -> None:
    def add() -> Op[int]:
        one = yield "one"
        two = yield "two"
        return int(one) + int(two)

    assert drive(add(), {"one": 1, "two": 2}.__getitem__) == 3


def test_an_operation_may_ask_nothing(drive: Drive) -> None:
    def silent() -> Op[str]:
        yield from ()
        return "done"

    asked: list[Any] = []
    assert drive(silent(), asked.append) == "done"
    assert asked == []


def test_operations_are_made_of_operations(drive: Drive) -> None:
    def inner(question: str) -> Op[str]:
        return str((yield question)).upper()

    def outer() -> Op[list[str]]:
        return [(yield from inner("a")), (yield from inner("b"))]

    assert drive(outer(), lambda question: question * 2) == ["AA", "BB"]


def test_a_question_that_fails_is_thrown_into_the_operation(drive: Drive) -> None:
    def careful() -> Op[str]:
        try:
            yield "fails"
        except LookupError as error:
            return f"judged {error.args[0]} after {(yield 'works')}"
        return "not reached"

    assert drive(careful(), {"works": "asking again"}.__getitem__) == (
        "judged fails after asking again"
    )


def test_what_the_operation_does_not_judge_reaches_the_caller(drive: Drive) -> None:
    cleaned = []

    def careless() -> Op[None]:
        try:
            yield "fails"
        finally:
            cleaned.append(True)

    with pytest.raises(LookupError):
        drive(careless(), {}.__getitem__)
    assert cleaned == [True]


def test_what_the_operation_raises_itself_reaches_the_caller(drive: Drive) -> None:
    def fail() -> Op[None]:
        yield "question"
        raise ArithmeticError("its own")

    with pytest.raises(ArithmeticError, match="its own"):
        drive(fail(), lambda question: None)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_closes_the_operation_without_asking_it(
    drive: Drive, interruption: type[BaseException]
) -> None:
    seen = []

    def stubborn() -> Op[str]:
        try:
            yield "question"
        except Exception:
            return "swallowed"
        finally:
            seen.append("closed")
        return "not reached"

    def ask(question: Any) -> Any:
        raise interruption

    with pytest.raises(interruption):
        drive(stubborn(), ask)
    assert seen == ["closed"]


def test_a_cancelled_operation_is_closed() -> None:
    seen = []

    def waiting() -> Op[None]:
        try:
            yield Pause(3600)
        finally:
            seen.append("closed")

    async def cancel() -> None:
        async def never(question: Any) -> None:
            await asyncio.Event().wait()

        task = asyncio.create_task(arun(waiting(), never))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert seen == ["closed"]


def test_a_question_that_ends_an_iterator_does_not_end_the_operation(drive: Drive) -> None:
    """A StopIteration that leaks from an `ask` must not look like a return."""

    def ask_once() -> Op[str]:
        yield "question"
        return "not reached"

    with pytest.raises(RuntimeError):
        drive(ask_once(), lambda question: next(iter(())))


def test_a_relayed_operation_asks_otherwise_and_ends_the_same(drive: Drive) -> None:
    asked = []

    def add() -> Op[int]:
        one = yield 1
        try:
            yield 2
        except LookupError:
            return int(one) + 10
        return 0

    def answer(question: tuple[str, int]) -> int:
        asked.append(question)
        if question[1] == 2:
            raise LookupError
        return 5

    assert drive(relay(add(), lambda question: ("there", question)), answer) == 15
    assert asked == [("there", 1), ("there", 2)]


def test_a_relayed_operation_that_is_given_up_is_closed() -> None:
    closed = []

    def waiting() -> Op[None]:
        try:
            yield "forever"
        finally:
            closed.append(True)

    relayed = relay(waiting(), lambda question: question)
    next(relayed)
    relayed.close()
    assert closed == [True]
