"""Forwarding: what a step calls gets the step's child key, without anybody having to remember it.

`through(transport)` wraps a transport of httpx or httpx2, sync or async, or an adapter of requests.
While a step runs, each POST, PUT, PATCH or DELETE that brings no key is sent with the step's: the
same over all attempts. Outside a step nothing is changed.

A step should make one foreign change. If it calls more than one method and address, the first gets
`child_key(name)`, the others keys of their own, numbered in the order in which they are first
called. The same method and address again gets the same key, because it is most likely a retry of
the same call: two changes at one address need two steps. A redirect keeps its key within its
origin; another origin gets one of its own.

With retries: `through(retrying(transport))`, so that a call has its key before it is retried.

None of the client libraries is imported: what they have in common is enough.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from oncekey._engine.steps import Calls, current_calls
from oncekey.client._key_placement import origin_of
from oncekey.client._request_mark import DELIVERY, Mark
from oncekey.client._wrapper import Wrapping, must_be_a_transport

HEADER = "Idempotency-Key"
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})

T = TypeVar("T")


def through(transport: T, *, header: str = HEADER) -> T:
    """The same transport, which sends the child key of the step that runs now.

    >>> httpx.Client(transport=through(httpx.HTTPTransport()))
    >>> httpx.AsyncClient(transport=through(httpx.AsyncHTTPTransport()))
    >>> session.mount("https://", through(requests.adapters.HTTPAdapter()))
    """
    must_be_a_transport(transport, "forward.through")
    return cast(T, Forwarding(transport, Giving(header)))


class Request(Protocol):
    """What the requests of all these libraries have in common."""

    method: Any
    url: Any
    headers: Any


class Giving:
    """Gives requests their keys."""

    def __init__(self, header: str) -> None:
        self._header = header
        self._given: WeakKeyDictionary[Any, tuple[Calls, str]] = WeakKeyDictionary()
        """By request: a prepared one may be sent again by another step, or outside of any."""

    def give(self, request: Request) -> None:
        """The key of the step that runs now, unless the request has one that is not ours."""
        headers: MutableMapping[str, str] = request.headers
        if headers.get(self._header) == _left_by_retries(request):
            headers.pop(self._header, None)
        calls = current_calls.get()
        given_by, given = self._given.get(request, (None, None))
        if given is not None and headers.get(self._header) == given:
            if given_by is calls:
                return
            del headers[self._header], self._given[request]
        method, address = str(request.method).upper(), str(request.url).partition("?")[0]
        if calls is None:
            return
        if _belongs_elsewhere(headers.get(self._header), calls, address):
            del headers[self._header]  # a redirect has brought it here
        if method in METHODS and self._header not in headers:
            headers[self._header] = key = calls.key_for((method, address))
            self._given[request] = calls, key


def _left_by_retries(request: Any) -> str | None:
    """The key that a transport below has written there: it was not its caller who did."""
    kept = getattr(request, "extensions", None) or getattr(request, "hooks", None) or {}
    mark = kept.get(DELIVERY)
    return mark.key if isinstance(mark, Mark) and mark.shown else None


def _belongs_elsewhere(key: str | None, calls: Calls, address: str) -> bool:
    """Whether it is a key of ours for another origin, which this one must not see."""
    target = calls.target_of(key) if key else None
    return isinstance(target, tuple) and origin_of(target[1]) != origin_of(address)


class Forwarding(Wrapping):
    """A transport around another one, for whichever library calls it."""

    gives_keys = True

    def __init__(self, inner: Any, giving: Giving) -> None:
        super().__init__(inner)
        self._giving = giving

    def handle_request(self, request: Request) -> Any:
        """As httpx calls a transport."""
        self._giving.give(request)
        return self._inner.handle_request(request)

    async def handle_async_request(self, request: Request) -> Any:
        """As httpx calls an async transport."""
        self._giving.give(request)
        return await self._inner.handle_async_request(request)

    def send(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """As requests calls an adapter."""
        self._giving.give(request)
        return self._inner.send(request, *args, **kwargs)
