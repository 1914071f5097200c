"""Learning: call the policy's `ask`, which finds out what became of an attempt that died.

It runs as the handler would: under the heartbeat, and `current()` gives the attempt. What it
returns, or raises, is for `Guard.learned`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

from oncekey._core.policy import Policy
from oncekey._engine.attempt import Attempt
from oncekey.errors import Misuse


def check_sync(named: Callable[[Callable[[Policy], bool]], list[str]]) -> None:
    """Raise `Misuse` where nobody could await what `ask` gives. `named` gives the routes whose
    policy meets a condition.
    """
    if waits := named(lambda policy: inspect.iscoroutinefunction(policy.ask)):
        raise Misuse(
            f"Policy(ask=…) of {', '.join(waits)} is async, and a WSGI application is not: "
            "write it with def"
        )


async def ask(attempt: Attempt) -> object:
    """What the application knows: an `Answer`, a `Learned`, or the exception that it raised.

    A function that blocks does so in a thread.
    """
    find_out = attempt.policy.ask
    if find_out is None:
        return None
    try:
        if inspect.iscoroutinefunction(find_out):
            return await find_out(attempt)
        found = await asyncio.to_thread(find_out, attempt)
        return await found if inspect.isawaitable(found) else found
    except Exception as error:  # it is the application's
        return error


def ask_sync(attempt: Attempt) -> object:
    """The same for callers that block."""
    find_out = attempt.policy.ask
    if find_out is None:
        return None
    try:
        found = find_out(attempt)
        if inspect.iscoroutine(found):
            found.close()
            return Misuse("Policy(ask=…) is async, and this application is not: write it with def")
        return found
    except Exception as error:
        return error
