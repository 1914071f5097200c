"""Operations as generators: they yield what they want to ask and are sent the answer.

An operation knows nothing of threads or event loops. `run` and `arun` drive the same generator; the
difference between sync and async is only in the `ask` they are given. A question that fails is
thrown back into the operation at its `yield`, so that it can judge the failure like any other
answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from oncekey._core.values import value

T = TypeVar("T")
Op = Generator[Any, Any, T]


@value
class Pause:
    """A question whose answer is only that time has passed."""

    seconds: float


@value
class Apart:
    """A question whose answer is what this work gives; it is done where it holds up nobody."""

    work: Callable[[], Any]
    writes: bool = False
    """Whether it writes a file, rather than computes."""


@value
class Undoable:
    """A question to whoever drives an operation within a transaction: whether a rollback surely
    undoes all that was written there.
    """

    error: BaseException | None = None
    """With which its handler ended."""


def relay(op: Op[T], turn: Callable[[Any], Any]) -> Op[T]:
    """The same operation, each of its questions turned into another."""
    try:
        question = next(op)
        while True:
            try:
                answer = yield turn(question)
            except Exception as error:
                question = op.throw(error)
            else:
                question = op.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        op.close()


def run(op: Op[T], ask: Callable[[Any], Any]) -> T:
    """Drive an operation with a blocking `ask`."""
    try:
        question = next(op)
        while True:
            try:
                answer = ask(question)
            except Exception as error:
                question = op.throw(error)
            else:
                question = op.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        op.close()


async def arun(op: Op[T], ask: Callable[[Any], Awaitable[Any]]) -> T:
    """Drive an operation with an awaitable `ask`."""
    try:
        question = next(op)
        while True:
            try:
                answer = await ask(question)
            except Exception as error:
                question = op.throw(error)
            else:
                question = op.send(answer)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        op.close()
