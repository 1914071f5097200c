"""Operations as generators: they yield questions and receive the answers.

An operation knows nothing of threads or event loops. `run` and `arun` drive the same generator;
sync and async differ only in the `ask` that you pass. If a question fails, its exception is thrown
into the operation at the `yield`, which can handle it like any other answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

from oncekey._core.values import value

T = TypeVar("T")
Op = Generator[Any, Any, T]


@value
class Pause:
    """Wait; the answer is None."""

    seconds: float


@value
class Offload:
    """Run `work` where it blocks no event loop; the answer is its result."""

    work: Callable[[], Any]
    writes: bool = False
    """True if it writes a file, False if it computes."""


@value
class Undoable:
    """Ask the driver of an operation in a transaction: does a rollback surely undo all that was
    written there?
    """

    error: BaseException | None = None
    """The error with which its handler ended."""


def relay(op: Op[T], translate: Callable[[Any], Any]) -> Op[T]:
    """Drive an operation within another one, with each of its questions translated."""
    try:
        question = next(op)
        while True:
            try:
                answer = yield translate(question)
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
