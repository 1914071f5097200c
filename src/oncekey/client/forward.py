"""Forward a step's child key: requests made in a step get its key automatically.

`through(transport)` wraps a transport of httpx or httpx2, sync or async, or an adapter of requests.
While a step runs, each POST, PUT, PATCH or DELETE without a key gets the step's child key, the same
in all attempts. Outside a step requests are unchanged.

A step should make one external change. If it calls several methods and URLs, the first gets
`child_key(name)`, the others get keys numbered in the order of their first call. The same method
and URL gets the same key again, because it is most likely a retry: two changes at one URL need two
steps. Numbers by order alone would give a retry loop a new key each time; by the body, a time stamp
in it would. A redirect keeps its key within its origin; another origin gets another key.

With retries: `through(retrying(transport))`, so that a call has its key before it is retried.

None of the client libraries is imported: what they have in common is enough.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Protocol, TypeVar, cast
from weakref import WeakKeyDictionary

from oncekey._engine.steps import StepCalls, current_calls
from oncekey.client._key_placement import DELIVERY, RequestMark, origin_of
from oncekey.client._wrapper import TransportWrapper, must_be_a_transport

HEADER = "Idempotency-Key"
METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})

T = TypeVar("T")


def through(transport: T, *, header: str = HEADER) -> T:
    """Wrap a transport so that it sends the child key of the current step.

    >>> httpx.Client(transport=through(httpx.HTTPTransport()))
    >>> httpx.AsyncClient(transport=through(httpx.AsyncHTTPTransport()))
    >>> session.mount("https://", through(requests.adapters.HTTPAdapter()))
    """
    must_be_a_transport(transport, "forward.through")
    return cast(T, ForwardingTransport(transport, StepKeys(header)))


class AnyRequest(Protocol):
    """What the requests of all libraries have in common."""

    method: Any
    url: Any
    headers: Any


class StepKeys:
    """Sets the child key of the current step on requests."""

    def __init__(self, header: str) -> None:
        self._header = header
        self._keys_given: WeakKeyDictionary[Any, tuple[StepCalls, str]] = WeakKeyDictionary()
        """By request: a prepared one may be sent again in another step, or outside steps."""

    def set_key(self, request: AnyRequest) -> None:
        """Set the current step's key, unless the request has a key that is not ours."""
        headers: MutableMapping[str, str] = request.headers
        if headers.get(self._header) == _key_written_by_retries(request):
            headers.pop(self._header, None)
        calls = current_calls.get()
        given_by, given = self._keys_given.get(request, (None, None))
        if given is not None and headers.get(self._header) == given:
            if given_by is calls:
                return
            del headers[self._header], self._keys_given[request]
        method, address = str(request.method).upper(), str(request.url).partition("?")[0]
        if calls is None:
            return
        if _is_for_another_origin(headers.get(self._header), calls, address):
            del headers[self._header]  # copied by a redirect
        if method in METHODS and self._header not in headers:
            headers[self._header] = key = calls.key_for((method, address))
            self._keys_given[request] = calls, key


def _key_written_by_retries(request: Any) -> str | None:
    """Return the key that a retrying transport, not the caller, wrote into the request."""
    extras = getattr(request, "extensions", None) or getattr(request, "hooks", None) or {}
    mark = extras.get(DELIVERY)
    return mark.key if isinstance(mark, RequestMark) and mark.is_visible else None


def _is_for_another_origin(key: str | None, calls: StepCalls, address: str) -> bool:
    """Whether this is our key for another origin, which this one must not see."""
    target = calls.target_of(key) if key else None
    return isinstance(target, tuple) and origin_of(target[1]) != origin_of(address)


class ForwardingTransport(TransportWrapper):
    """A transport that sets step keys, for httpx, httpx2 and requests."""

    gives_keys = True

    def __init__(self, inner: Any, step_keys: StepKeys) -> None:
        super().__init__(inner)
        self._step_keys = step_keys

    def handle_request(self, request: AnyRequest) -> Any:
        """Called by httpx."""
        self._step_keys.set_key(request)
        return self._inner.handle_request(request)

    async def handle_async_request(self, request: AnyRequest) -> Any:
        """Called by async httpx."""
        self._step_keys.set_key(request)
        return await self._inner.handle_async_request(request)

    def send(self, request: AnyRequest, *args: Any, **kwargs: Any) -> Any:
        """Called by requests."""
        self._step_keys.set_key(request)
        return self._inner.send(request, *args, **kwargs)
