"""A client for new code: keys and retries from the first request on.

    with Client(base_url="https://api.example.com") as api:
        answer = api.post("/orders", json={"sku": "mug"})

It is a client of httpx2 or httpx, whichever is installed, over a retrying transport: what they can
do, it can do, and its answers are theirs.
"""

from __future__ import annotations

import asyncio
import importlib
from types import TracebackType
from typing import Any

from oncekey.client.httpx_wire import EXTENSION
from oncekey.client.intent import RELIED_S, advertised
from oncekey.client.journal import Journal
from oncekey.client.sender import Sender
from oncekey.client.transport import Retrying
from oncekey.errors import Misuse

LIBRARIES = ("httpx2", "httpx")
_OURS = frozenset(Sender.__init__.__kwdefaults__ or ())


def installed(names: tuple[str, ...] = LIBRARIES) -> Any:
    """The first of these libraries that is there."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise Misuse(f"Client needs one of {', '.join(names)}: install it, as in `pip install httpx2`")


def _parted(options: dict[str, Any]) -> tuple[Sender, dict[str, Any]]:
    """What is ours, and what is the library's."""
    ours = {name: value for name, value in options.items() if name in _OURS}
    theirs = {name: value for name, value in options.items() if name not in _OURS}
    return Sender(**ours), theirs


class _Intents:
    """Keys from the journal, and what the journal learns from the answers."""

    def __init__(self, journal: Journal | None, base_url: Any, sender: Sender) -> None:
        self.journal = journal
        self._base_url = base_url
        self._sender = sender

    def key(self, intent: str, url: str, note: str) -> str:
        if self.journal is None:
            raise Misuse("intent=… needs a journal: Client(journal=Journal('intents.db'))")
        return self.journal.key(
            intent,
            origin=str(self._base_url.join(url)),
            note=note,
            retention_s=RELIED_S.get(self._sender.profile.name),
        )

    def news(self, response: Any) -> tuple[str, float] | None:
        """How long this server remembers keys, if the journal does not know that: it is said with
        every first answer, and is always the same.
        """
        heard = advertised(response, self._sender.clock.wall())
        if heard is None or self.journal is None or self.journal.knows(*heard):
            return None
        return heard

    def learn(self, heard: tuple[str, float]) -> None:
        if self.journal is not None:
            self.journal.learn(*heard)


def _with_key(options: dict[str, Any], key: str | None) -> dict[str, Any]:
    if key is None:
        return options
    return {**options, "extensions": {**(options.get("extensions") or {}), EXTENSION: key}}


def _one_of(key: str | None) -> None:
    if key is not None:
        raise Misuse("give a request its key, or its intent, not both")


class Client:
    """Sends requests, each under a new key; under `key`, where the caller has one; or under that of
    `intent`, which the journal keeps until the caller settles it (`note` is kept beside it).

    Options are those of `retrying`, and all others of the library's own client.
    """

    def __init__(
        self, *, transport: Any = None, journal: Journal | None = None, **options: Any
    ) -> None:
        library = installed()
        sender, theirs = _parted(options)
        inner = transport or library.HTTPTransport()
        self.inner = library.Client(transport=Retrying(inner, sender), **theirs)
        """The library's own client, for whatever is not here."""
        self._intents = _Intents(journal, self.inner.base_url, sender)

    def request(
        self,
        method: str,
        url: str,
        *,
        key: str | None = None,
        intent: str | None = None,
        note: str = "",
        **options: Any,
    ) -> Any:
        if intent is None:
            return self.inner.request(method, url, **_with_key(options, key))
        _one_of(key)
        key = self._intents.key(intent, url, note)
        response = self.inner.request(method, url, **_with_key(options, key))
        if heard := self._intents.news(response):
            self._intents.learn(heard)
        return response

    def get(self, url: str, **options: Any) -> Any:
        return self.request("GET", url, **options)

    def post(self, url: str, **options: Any) -> Any:
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Any) -> Any:
        return self.request("PUT", url, **options)

    def patch(self, url: str, **options: Any) -> Any:
        return self.request("PATCH", url, **options)

    def delete(self, url: str, **options: Any) -> Any:
        return self.request("DELETE", url, **options)

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """As `Client`, for an event loop. The journal is asked in a thread."""

    def __init__(
        self, *, transport: Any = None, journal: Journal | None = None, **options: Any
    ) -> None:
        library = installed()
        sender, theirs = _parted(options)
        inner = transport or library.AsyncHTTPTransport()
        self.inner = library.AsyncClient(transport=Retrying(inner, sender), **theirs)
        """The library's own client, for whatever is not here."""
        self._intents = _Intents(journal, self.inner.base_url, sender)

    async def request(
        self,
        method: str,
        url: str,
        *,
        key: str | None = None,
        intent: str | None = None,
        note: str = "",
        **options: Any,
    ) -> Any:
        if intent is None:
            return await self.inner.request(method, url, **_with_key(options, key))
        _one_of(key)
        key = await asyncio.to_thread(self._intents.key, intent, url, note)
        response = await self.inner.request(method, url, **_with_key(options, key))
        if heard := self._intents.news(response):
            await asyncio.to_thread(self._intents.learn, heard)
        return response

    async def get(self, url: str, **options: Any) -> Any:
        return await self.request("GET", url, **options)

    async def post(self, url: str, **options: Any) -> Any:
        return await self.request("POST", url, **options)

    async def put(self, url: str, **options: Any) -> Any:
        return await self.request("PUT", url, **options)

    async def patch(self, url: str, **options: Any) -> Any:
        return await self.request("PATCH", url, **options)

    async def delete(self, url: str, **options: Any) -> Any:
        return await self.request("DELETE", url, **options)

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
