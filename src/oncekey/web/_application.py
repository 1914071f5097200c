"""Applications: ASGI's and WSGI's are told apart by what they are called with.

Around the wrong kind a middleware would be built without a word, and fail at the first request with
an error that names neither.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from oncekey._core.policy import Policy
from oncekey.errors import Misuse


def check_asgi(app: object) -> None:
    """Raise `Misuse` for what cannot be an ASGI application."""
    if not _takes(app, 3):
        hint = "a WSGI application takes oncekey.web.wsgi.IdempotencyMiddleware"
        raise _misuse(app, "ASGI", "(scope, receive, send)", hint)


def check_wsgi(app: object) -> None:
    """Raise `Misuse` for what cannot be a WSGI application."""
    if not _takes(app, 2):
        hint = "an ASGI application takes oncekey.web.asgi.IdempotencyMiddleware"
        raise _misuse(app, "WSGI", "(environ, start_response)", hint)


def check_ask_blocks(named: Callable[[Callable[[Policy], bool]], list[str]]) -> None:
    """Raise `Misuse` where nobody could await what `ask` gives. `named` gives the routes whose
    policy meets a condition.
    """
    if waits := named(lambda policy: inspect.iscoroutinefunction(policy.ask)):
        raise Misuse(
            f"Policy(ask=…) of {', '.join(waits)} is async, and a WSGI application is not: "
            "write it with def"
        )


def _takes(app: object, count: int) -> bool:
    """Whether it can be called with so many arguments; where nobody can tell, it can."""
    if not callable(app):
        return False
    try:
        inspect.signature(app, follow_wrapped=False).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # written in C
        return True
    return True


def _misuse(app: object, kind: str, called: str, hint: str) -> Misuse:
    return Misuse(
        f"IdempotencyMiddleware was given a {type(app).__name__}, which cannot be called with "
        f"{called}: it is no {kind} application; {hint}"
    )
