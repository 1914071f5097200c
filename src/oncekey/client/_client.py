"""HTTP clients for new code, with idempotency keys and retries built in.

    with Client(base_url="https://api.example.com") as api:
        answer = api.post("/orders", json={"sku": "mug"})

They are clients of httpx2 or httpx, whichever is installed, over a retrying transport: they take
the same options and return the same responses.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oncekey.client._httpx import EXTENSION
from oncekey.client._intent import Intent, normalize_origin, stated_retention
from oncekey.client._journal import Journal
from oncekey.client._key_placement import GivenKey
from oncekey.client._sender import RequestSender
from oncekey.client._transport import wrap
from oncekey.client._wrapper import library_of, must_be_a_transport, must_have_method
from oncekey.errors import Misuse, StoreUnavailable

if TYPE_CHECKING:  # where only httpx is, its answers have no type
    from httpx2 import Response

LIBRARIES = ("httpx2", "httpx")
_OURS = frozenset(RequestSender.__init__.__kwdefaults__ or ())
_TRANSPORT_OPTIONS = frozenset({"verify", "cert", "http1", "http2", "limits", "proxy", "trust_env"})
"""Options that the library's client passes to the transport it creates."""

_log = logging.getLogger("oncekey.client")


def import_library(names: tuple[str, ...] = LIBRARIES) -> Any:
    """Import the first of these libraries that is installed."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise Misuse(f"Client needs one of {', '.join(names)}: pip install 'oncekey[client]'")


def _split_options(
    options: dict[str, Any], transport: Any, make: Callable[..., Any], method: str
) -> tuple[RequestSender, dict[str, Any]]:
    """Split the options into our sender and the library client's own options, in which every
    transport is wrapped by ours.
    """
    sender = RequestSender(**{name: each for name, each in options.items() if name in _OURS})
    client_options = {name: each for name, each in options.items() if name not in _OURS}
    transport_options = {
        name: client_options.pop(name) for name in _TRANSPORT_OPTIONS & client_options.keys()
    }
    if "trust_env" in transport_options:  # the client itself reads a .netrc
        client_options["trust_env"] = transport_options["trust_env"]
    if transport is not None and transport_options.keys() - {"trust_env"}:
        raise Misuse(f"give {', '.join(sorted(transport_options))} to the transport that you give")
    inner = make(**transport_options) if transport is None else transport
    mounts = (client_options.get("mounts") or {}).items()
    for each in (inner, *(each for _, each in mounts if each is not None)):
        _must_match_library(each, make.__module__.partition(".")[0], method)
    wrapped = {pattern: each and wrap(each, sender) for pattern, each in mounts}
    return sender, {**client_options, "transport": wrap(inner, sender), "mounts": wrapped}


def _must_match_library(transport: Any, library: str, method: str) -> None:
    must_be_a_transport(transport, "retrying")
    must_have_method(transport, method)
    other = library_of(transport, LIBRARIES)
    if other not in (None, library):
        raise Misuse(
            f"this transport is one of {other}, and Client(…) is a client of {library}, which is "
            f"installed: use {library}'s transport, or {other}.Client(transport=retrying(…))"
        )


class _Intents:
    """Takes keys from the journal, and tells it what responses say about retention."""

    def __init__(self, journal: Journal | None, base_url: Any, sender: RequestSender) -> None:
        if not isinstance(journal, Journal | None):
            raise Misuse(
                "journal=… takes a Journal('intents.db'); with a SqlJournal, write keys in your "
                "own transaction and send them: client.post(…, key=key)"
            )
        self.journal = journal
        self._base_url = base_url
        self._sender = sender

    def key(self, intent: str, url: str, note: str) -> GivenKey:
        if self.journal is None:
            raise Misuse("intent=… needs a journal: Client(journal=Journal('intents.db'))")
        origin = normalize_origin(str(self._base_url.join(url)))
        relied_s = self._sender.profile.relied_s
        begun = self.journal.begin(intent, origin=origin, note=note, retention_s=relied_s)
        if begun.origin not in ("", origin):
            _log.warning(
                "the intent %r was begun for %s and is sent to %s: if that is another server, it "
                "does not know the key and could carry it out a second time",
                intent,
                begun.origin,
                origin,
            )
        return _as_given_key(begun)

    def request_key(self, key: object) -> str | GivenKey | None:
        """Convert a caller's key or intent to what a transport takes."""
        if isinstance(key, Intent):
            key.must_be_usable(self._sender.clock.wall())
            return _as_given_key(key)
        if isinstance(key, str | None):
            return key
        kind = type(key).__name__
        raise Misuse(f"key=… takes a text or a journal's intent, not {kind}: key=str(…)")

    def new_retention(self, response: Any) -> tuple[str, float] | None:
        """Return the origin and how long it remembers keys, if the journal does not know that yet:
        every first response says it, and it is always the same.
        """
        retention = stated_retention(response, self._sender.clock.wall())
        if retention is None or self.journal is None or self.journal.knows(*retention):
            return None
        return retention

    def learn(self, retention: tuple[str, float]) -> None:
        """Write a retention to the journal. A failure must not lose the response."""
        try:
            if self.journal is not None:
                self.journal.learn(*retention)
        except StoreUnavailable as error:
            _log.warning("could not record how long %s remembers keys: %s", retention[0], error)


def _with_key(options: dict[str, Any], key: str | GivenKey | None) -> dict[str, Any]:
    if key is None:
        return options
    return {**options, "extensions": {**(options.get("extensions") or {}), EXTENSION: key}}


def _as_given_key(intent: Intent) -> GivenKey:
    return GivenKey(intent.key, intent.begun, intent.until)


def _refuse_key_and_intent(key: str | Intent | None) -> None:
    if key is not None:
        raise Misuse("give a request a key or an intent, not both")


class Client:
    """An HTTP client that sends each request with an idempotency key and retries it.

    The key is new; or `key`, a text or a journal's intent; or that of the `intent` of this name,
    which the journal stores (with a `note`) until you settle it.

    Options are those of `retrying` and of the library's own client.
    """

    def __init__(
        self, *, transport: Any = None, journal: Journal | None = None, **options: Any
    ) -> None:
        library = import_library()
        sender, client_options = _split_options(
            options, transport, library.HTTPTransport, "handle_request"
        )
        self.inner = library.Client(**client_options)
        """The library's own client, for everything that is not here."""
        self._intents = _Intents(journal, self.inner.base_url, sender)

    def request(
        self,
        method: str,
        url: str,
        *,
        key: str | Intent | None = None,
        intent: str | None = None,
        note: str = "",
        **options: Any,
    ) -> Response:
        response: Response
        if intent is None:
            request_key = self._intents.request_key(key)
            response = self.inner.request(method, url, **_with_key(options, request_key))
            return response
        _refuse_key_and_intent(key)
        begun = self._intents.key(intent, url, note)
        response = self.inner.request(method, url, **_with_key(options, begun))
        if retention := self._intents.new_retention(response):
            self._intents.learn(retention)
        return response

    def get(self, url: str, **options: Any) -> Response:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> Response:
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Any) -> Response:
        return self.request("PUT", url, **options)

    def patch(self, url: str, **options: Any) -> Response:
        return self.request("PATCH", url, **options)

    def delete(self, url: str, **options: Any) -> Response:
        return self.request("DELETE", url, **options)

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient:
    """An async `Client`. The journal is used in a thread."""

    def __init__(
        self, *, transport: Any = None, journal: Journal | None = None, **options: Any
    ) -> None:
        library = import_library()
        make = library.AsyncHTTPTransport
        sender, client_options = _split_options(options, transport, make, "handle_async_request")
        self.inner = library.AsyncClient(**client_options)
        """The library's own client, for everything that is not here."""
        self._intents = _Intents(journal, self.inner.base_url, sender)

    async def request(
        self,
        method: str,
        url: str,
        *,
        key: str | Intent | None = None,
        intent: str | None = None,
        note: str = "",
        **options: Any,
    ) -> Response:
        response: Response
        if intent is None:
            request_key = self._intents.request_key(key)
            response = await self.inner.request(method, url, **_with_key(options, request_key))
            return response
        _refuse_key_and_intent(key)
        begun = await asyncio.to_thread(self._intents.key, intent, url, note)
        response = await self.inner.request(method, url, **_with_key(options, begun))
        if retention := self._intents.new_retention(response):
            await asyncio.to_thread(self._intents.learn, retention)
        return response

    async def get(self, url: str, **options: Any) -> Response:
        return await self.request("GET", url, **options)

    async def post(self, url: str, **options: Any) -> Response:
        return await self.request("POST", url, **options)

    async def put(self, url: str, **options: Any) -> Response:
        return await self.request("PUT", url, **options)

    async def patch(self, url: str, **options: Any) -> Response:
        return await self.request("PATCH", url, **options)

    async def delete(self, url: str, **options: Any) -> Response:
        return await self.request("DELETE", url, **options)

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
