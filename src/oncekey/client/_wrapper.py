"""A transport around another one: whatever is not about requests goes to the inner one."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from oncekey.errors import Misuse

_WAYS = {
    "handle_request": "httpx.Client(transport=…), or our Client(transport=…)",
    "handle_async_request": "httpx.AsyncClient(transport=…), or our AsyncClient(transport=…)",
    "send": "session.mount('https://', …) of requests",
}
"""How a transport is called, and by whom."""

Self = TypeVar("Self", bound="Wrapping")


def must_be_a_transport(given: object, what: str) -> None:
    """A misuse, unless one of the libraries could send requests through it. A whole client or
    session is none: what it is asked for would go past what is wrapped around it.
    """
    if callable(getattr(given, "request", None)):
        raise Misuse(
            f"{what}(…) was given a whole {type(given).__name__}, and would be passed by: give it "
            f"the transport that a client is made with, httpx2.Client(transport={what}("
            f"httpx2.HTTPTransport())), or the adapter that a session has, session.mount("
            f"'https://', {what}(HTTPAdapter()))"
        )
    if isinstance(given, type):
        raise Misuse(f"{what}({given.__name__}): this is a class; make one, {given.__name__}()")
    if not any(callable(getattr(given, way, None)) for way in _WAYS):
        raise Misuse(
            f"{what}(…) takes a transport of httpx or httpx2, such as HTTPTransport(), or "
            f"an adapter of requests, such as HTTPAdapter(), not {type(given).__name__}"
        )


def must_not_give_keys(given: object) -> None:
    """A misuse, if it gives a step's keys: it would find that each request has another already."""
    if getattr(given, "gives_keys", False):
        raise Misuse("write through(retrying(…)), not retrying(through(…)): keys come first")


def must_not_retry(given: object) -> None:
    """A misuse, if one of ours is inside, or an adapter of requests retries by itself: each of our
    attempts would be several, and those know nothing of this budget.
    """
    if getattr(given, "gives_retries", False):
        raise Misuse(
            "this transport is retrying(…) already, and each attempt would be several: wrap it "
            "once; Client(…) and AsyncClient(…) do it by themselves"
        )
    own = getattr(given, "max_retries", None)
    if any(getattr(own, which, None) for which in ("total", "connect", "read", "status", "other")):
        raise Misuse(
            "this adapter retries by itself: leave max_retries out, and say how often and how long "
            "by retrying(…, retries=Retries(…))"
        )


def must_take(given: object, way: str) -> None:
    """A misuse, if a transport cannot be called that way: it is for another kind of client."""
    if not callable(getattr(given, way, None)):
        takes = [each for each in _WAYS if callable(getattr(given, each, None))]
        raise Misuse(
            f"{type(given).__name__} is no transport for {_WAYS[way]}: it is for "
            f"{' and '.join(_WAYS[each] for each in takes)}"
        )


def of_library(given: object, names: tuple[str, ...]) -> str | None:
    """Which of these libraries it is a transport of; None if of none."""
    while isinstance(given, Wrapping):
        given = given._inner
    roots = (cls.__module__.partition(".")[0] for cls in type(given).__mro__)
    return next((root for root in roots if root in names), None)


def _refuse(inner: object, way: str, *_: object, **__: object) -> None:
    must_take(inner, way)


class Wrapping:
    """What both kinds of our transports have in common."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        for way in _WAYS:
            if not callable(getattr(inner, way, None)):  # else it would be the library's own error
                setattr(self, way, partial(_refuse, inner, way))

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __enter__(self: Self) -> Self:
        must_take(self._inner, "handle_request")
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(kind, error, traceback)

    async def __aenter__(self: Self) -> Self:
        must_take(self._inner, "handle_async_request")
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(kind, error, traceback)
