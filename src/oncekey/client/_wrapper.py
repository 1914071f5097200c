"""The base of our transports: checks the inner transport, and delegates to it."""

from __future__ import annotations

from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from oncekey.errors import Misuse

_METHODS = {
    "handle_request": "httpx.Client(transport=…), or our Client(transport=…)",
    "handle_async_request": "httpx.AsyncClient(transport=…), or our AsyncClient(transport=…)",
    "send": "session.mount('https://', …) of requests",
}
"""The method by which each library calls a transport."""

Self = TypeVar("Self", bound="TransportWrapper")


def must_be_a_transport(transport: object, what: str) -> None:
    """Raise `Misuse` unless a library can send requests through it. A client or session is not a
    transport: its requests would bypass the wrapper.
    """
    if callable(getattr(transport, "request", None)):
        raise Misuse(
            f"{what}(…) was given a {type(transport).__name__}, which would bypass it: give it "
            f"the client's transport, httpx2.Client(transport={what}(httpx2.HTTPTransport())), or "
            f"the session's adapter, session.mount('https://', {what}(HTTPAdapter()))"
        )
    if isinstance(transport, type):
        raise Misuse(
            f"{what}({transport.__name__}): this is a class; make one, {transport.__name__}()"
        )
    if not any(callable(getattr(transport, method, None)) for method in _METHODS):
        raise Misuse(
            f"{what}(…) takes a transport of httpx or httpx2, such as HTTPTransport(), or "
            f"an adapter of requests, such as HTTPAdapter(), not {type(transport).__name__}"
        )


def must_not_give_keys(transport: object) -> None:
    """Raise `Misuse` if it adds a step's keys: every request would have another key already."""
    if getattr(transport, "gives_keys", False):
        raise Misuse("write through(retrying(…)), not retrying(through(…)): keys come first")


def must_not_retry(transport: object) -> None:
    """Raise `Misuse` if the transport retries already, ours or an adapter's: each attempt would
    become several, outside this budget.
    """
    if getattr(transport, "gives_retries", False):
        raise Misuse(
            "this transport is retrying(…) already, and each attempt would become several: wrap it "
            "once; Client(…) and AsyncClient(…) wrap it themselves"
        )
    own = getattr(transport, "max_retries", None)
    if any(getattr(own, which, None) for which in ("total", "connect", "read", "status", "other")):
        raise Misuse(
            "this adapter has its own retries: leave max_retries out, and configure "
            "retrying(…, retries=Retries(…))"
        )


def must_have_method(transport: object, method: str) -> None:
    """Raise `Misuse` if a transport lacks this method: it is for another kind of client."""
    if not callable(getattr(transport, method, None)):
        takes = [each for each in _METHODS if callable(getattr(transport, each, None))]
        raise Misuse(
            f"{type(transport).__name__} is no transport for {_METHODS[method]}: it is for "
            f"{' and '.join(_METHODS[each] for each in takes)}"
        )


def library_of(transport: object, names: tuple[str, ...]) -> str | None:
    """Return which of these libraries made a transport, or None."""
    while isinstance(transport, TransportWrapper):
        transport = transport._inner
    roots = (cls.__module__.partition(".")[0] for cls in type(transport).__mro__)
    return next((root for root in roots if root in names), None)


def _refuse(inner: object, method: str, *_: object, **__: object) -> None:
    must_have_method(inner, method)


class TransportWrapper:
    """What our transports have in common."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        for method in _METHODS:
            if not callable(
                getattr(inner, method, None)
            ):  # else it would be the library's own error
                setattr(self, method, partial(_refuse, inner, method))

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # a copy in construction has none yet
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __enter__(self: Self) -> Self:
        must_have_method(self._inner, "handle_request")
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
        must_have_method(self._inner, "handle_async_request")
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(kind, error, traceback)
