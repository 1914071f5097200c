"""A client for new code: keys and retries from the first request on.

    with Client(base_url="https://api.example.com") as api:
        answer = api.post("/orders", json={"sku": "mug"})

It is a client of httpx2 or httpx, whichever is installed, over a retrying transport: what they can
do, it can do, and its answers are theirs.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from oncekey.client._httpx import EXTENSION
from oncekey.client._intent import Intent, advertised, where
from oncekey.client._journal import Journal
from oncekey.client._request_mark import Given
from oncekey.client._sender import Sender
from oncekey.client._transport import around
from oncekey.client._wrapper import must_be_a_transport, must_take, of_library
from oncekey.errors import Misuse, StoreUnavailable

if TYPE_CHECKING:  # where only httpx is, its answers have no type
    from httpx2 import Response

LIBRARIES = ("httpx2", "httpx")
_OURS = frozenset(Sender.__init__.__kwdefaults__ or ())
_OF_THE_WIRE = frozenset({"verify", "cert", "http1", "http2", "limits", "proxy", "trust_env"})
"""What the library's client would give to a transport that it makes itself."""

_log = logging.getLogger("oncekey.client")


def installed(names: tuple[str, ...] = LIBRARIES) -> Any:
    """The first of these libraries that is there."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise Misuse(f"Client needs one of {', '.join(names)}: pip install 'oncekey[client]'")


def _parted(
    options: dict[str, Any], transport: Any, make: Callable[..., Any], way: str
) -> tuple[Sender, dict[str, Any]]:
    """What is ours; and what is the library's client's, which sends nothing past our transport."""
    sender = Sender(**{name: each for name, each in options.items() if name in _OURS})
    theirs = {name: each for name, each in options.items() if name not in _OURS}
    of_the_wire = {name: theirs.pop(name) for name in _OF_THE_WIRE & theirs.keys()}
    if "trust_env" in of_the_wire:  # the client itself reads a .netrc
        theirs["trust_env"] = of_the_wire["trust_env"]
    if transport is not None and of_the_wire.keys() - {"trust_env"}:
        raise Misuse(f"give {', '.join(sorted(of_the_wire))} to the transport that you give")
    inner = make(**of_the_wire) if transport is None else transport
    mounts = (theirs.get("mounts") or {}).items()
    for each in (inner, *(each for _, each in mounts if each is not None)):
        _must_fit(each, make.__module__.partition(".")[0], way)
    wrapped = {pattern: each and around(each, sender) for pattern, each in mounts}
    return sender, {**theirs, "transport": around(inner, sender), "mounts": wrapped}


def _must_fit(transport: Any, library: str, way: str) -> None:
    must_be_a_transport(transport, "retrying")
    must_take(transport, way)
    theirs = of_library(transport, LIBRARIES)
    if theirs not in (None, library):
        raise Misuse(
            f"this transport is one of {theirs}, and Client(…) is a client of {library}, which "
            f"is installed: take {library}'s; or {theirs}.Client(transport=retrying(…))"
        )


class _Intents:
    """Keys from the journal, and what the journal learns from the answers."""

    def __init__(self, journal: Journal | None, base_url: Any, sender: Sender) -> None:
        if not isinstance(journal, Journal | None):
            raise Misuse(
                "journal=… takes a Journal('intents.db'); with a SqlJournal write its keys in your "
                "own transaction and send them: client.post(…, key=key)"
            )
        self.journal = journal
        self._base_url = base_url
        self._sender = sender

    def key(self, intent: str, url: str, note: str) -> Given:
        if self.journal is None:
            raise Misuse("intent=… needs a journal: Client(journal=Journal('intents.db'))")
        origin = where(str(self._base_url.join(url)))
        relied_s = self._sender.profile.relied_s
        begun = self.journal.begin(intent, origin=origin, note=note, retention_s=relied_s)
        if begun.origin not in ("", origin):
            _log.warning(
                "the intent %r was begun at %s, and is sent to %s: if that is another server, it "
                "does not know the key, and could do it a second time",
                intent,
                begun.origin,
                origin,
            )
        return _given(begun)

    def given(self, key: object) -> str | Given | None:
        """As a transport takes it: what is known of an intent counts as much as its key."""
        if isinstance(key, Intent):
            key.must_be_usable(self._sender.clock.wall())
            return _given(key)
        if isinstance(key, str | None):
            return key
        kind = type(key).__name__
        raise Misuse(f"key=… takes a text, or an intent of a journal, not {kind}: key=str(…)")

    def news(self, response: Any) -> tuple[str, float] | None:
        """How long this server remembers keys, if the journal does not know that: it is said with
        every first answer, and is always the same.
        """
        heard = advertised(response, self._sender.clock.wall())
        if heard is None or self.journal is None or self.journal.knows(*heard):
            return None
        return heard

    def learn(self, heard: tuple[str, float]) -> None:
        """The answer is there, and must not be lost because that cannot be written."""
        try:
            if self.journal is not None:
                self.journal.learn(*heard)
        except StoreUnavailable as error:
            _log.warning("how long %s remembers keys is not written down: %s", heard[0], error)


def _with_key(options: dict[str, Any], key: str | Given | None) -> dict[str, Any]:
    if key is None:
        return options
    return {**options, "extensions": {**(options.get("extensions") or {}), EXTENSION: key}}


def _given(intent: Intent) -> Given:
    return Given(intent.key, intent.begun, intent.until)


def _one_of(key: str | Intent | None) -> None:
    if key is not None:
        raise Misuse("give a request its key, or its intent, not both")


class Client:
    """Sends requests, each under a new key; under `key`, where the caller has one, or has an intent
    that a journal gave; or under that of `intent`, by its name, which the journal keeps until the
    caller settles it (`note` is kept beside it).

    Options are those of `retrying`, and all others of the library's own client.
    """

    def __init__(
        self, *, transport: Any = None, journal: Journal | None = None, **options: Any
    ) -> None:
        library = installed()
        sender, theirs = _parted(options, transport, library.HTTPTransport, "handle_request")
        self.inner = library.Client(**theirs)
        """The library's own client, for whatever is not here."""
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
            given = self._intents.given(key)
            response = self.inner.request(method, url, **_with_key(options, given))
            return response
        _one_of(key)
        begun = self._intents.key(intent, url, note)
        response = self.inner.request(method, url, **_with_key(options, begun))
        if heard := self._intents.news(response):
            self._intents.learn(heard)
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
    """As `Client`, for an event loop. The journal is asked in a thread."""

    def __init__(
        self, *, transport: Any = None, journal: Journal | None = None, **options: Any
    ) -> None:
        library = installed()
        make = library.AsyncHTTPTransport
        sender, theirs = _parted(options, transport, make, "handle_async_request")
        self.inner = library.AsyncClient(**theirs)
        """The library's own client, for whatever is not here."""
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
            given = self._intents.given(key)
            response = await self.inner.request(method, url, **_with_key(options, given))
            return response
        _one_of(key)
        begun = await asyncio.to_thread(self._intents.key, intent, url, note)
        response = await self.inner.request(method, url, **_with_key(options, begun))
        if heard := self._intents.news(response):
            await asyncio.to_thread(self._intents.learn, heard)
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
