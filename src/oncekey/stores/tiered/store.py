"""A tiered store: a database keeps the records, and a Redis before it serves replays.

The database, the *truth*, decides and writes everything. The cache holds copies of completed
records only, so that a replay need not query the database: `Insert` looks into the cache first, and
asks the truth for what it does not find. A record is copied when an insert has found it in the
truth: then it is committed, which a completion within a caller's transaction may not be; and only
records that are replayed take up room.

Whatever happens to the cache, nothing runs twice and no client gets a wrong response: an entry that
is lost, old, forged or another id's is ignored (`cache`), and then the truth is asked. A cache that
is slow or down is skipped for a while. Two things must reach the cache, and are refused while it
does not answer: `Purge`, and running a completed operation again.

Copies are sent with the next question to the cache, never alone, and only where there is no entry
yet: so a process that read a record before it changed cannot put the old one back. Before a
completed record runs again, its entry is replaced by a *stop*, which keeps other processes from
writing one for a while.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from oncekey._core.framing import as_bytes
from oncekey._core.notice import NOTICE_ID
from oncekey._core.op import Op
from oncekey._core.record import TOKEN_BYTES, Record, State
from oncekey._core.reserved_records import MAC_KEY_ID, reserved_claim, reserved_swap
from oncekey._core.verbs import Count, Find, Found, Insert, Purge, Scan, Swap, Verb, When
from oncekey._system.clock import Clock, SystemClock
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.base import AGAIN, AsyncConnection, Connection, Store
from oncekey.stores.checks import Finding, advice
from oncekey.stores.redis import store as redis_store
from oncekey.stores.redis.connection import Endpoint
from oncekey.stores.redis.verbs import Command
from oncekey.stores.sql import check_waits
from oncekey.stores.tiered.cache import (
    EPOCH_BYTES,
    CacheQuestion,
    decode_entry,
    encode_entry,
    ttl_s,
)
from oncekey.stores.tiered.connection import AsyncTieredConnection, Cache, TieredConnection
from oncekey.stores.urls import open_store
from oncekey.stores.wrapper import StoreAround

ENTRY_BYTES_MAX = 65_536
"""Larger entries are not cached: the truth serves those records."""
WAITING_MAX = 256
STOP_S = 60
"""How long a stop lasts."""
WAITING_S_MAX = STOP_S / 2
"""How long after the truth was read a copy may still be written: a stop outlasts it for certain,
whenever the record changed in between.
"""
EPOCH_S = 30 * 86_400
_RETENTION_S = 100 * 365 * 86_400.0
_ROUNDS_MAX = 16
_STOP = b"-"
# Remove a wrong entry, unless it was replaced meanwhile, perhaps by a stop.
_REMOVE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('UNLINK', KEYS[1]) end"


class TieredStore(StoreAround):
    """Keep records in another store, with copies of completed ones in a Redis."""

    is_cache = True

    def __init__(
        self,
        truth: Store,
        cache: Endpoint,
        *,
        prefix: str = "oncekey",
        clock: Clock | None = None,
    ) -> None:
        """`cache` may lose anything; its timeout limits what a slow cache costs."""
        super().__init__(truth)
        self._clock = clock or SystemClock()
        self._cache = Cache(cache, self._clock)
        self._prefix = f"{prefix}:tiered:"
        self._secret: bytes | None = None
        self._waiting: deque[tuple[float, Command]] = deque(maxlen=WAITING_MAX)
        """Commands for the next question to the cache, and since when. Shared by all threads."""

    def __repr__(self) -> str:
        return f"TieredStore({self.truth!r}, {str(self._cache.endpoint)!r})"

    @property
    def truth(self) -> Store:
        """The store that decides, and keeps all records."""
        return self.inner

    def group(self, verb: Verb) -> Hashable:
        return self.truth.group(verb)

    # --------------------------------------------------------------------------- connections

    def connect(self) -> Connection:
        return TieredConnection(self.truth, self._cache, must_open=self._secret is None)

    async def aconnect(self) -> AsyncConnection:
        connection = AsyncTieredConnection(self.truth, self._cache)
        await connection.open(must=self._secret is None)
        return connection

    def prepare(self) -> Op[None]:
        """Prepare the truth. While it does not answer, a process that knows the MAC key can still
        replay.
        """
        try:
            yield from self.truth.prepare()
        except StoreUnavailable:
            if self._secret is None:
                raise
        else:
            self.durability = self.truth.durability
            self._secret = self._secret or (yield from self._read_secret())

    def migrate(self) -> Op[list[str]]:
        return self.truth.migrate()

    def _read_secret(self) -> Op[bytes]:
        """Return the MAC key: the first process creates it, and the truth stores it."""
        for _ in range(_ROUNDS_MAX):
            [found] = yield from self.truth.perform([Find(MAC_KEY_ID)])
            token = os.urandom(TOKEN_BYTES)
            if found is None:
                claim = reserved_claim(MAC_KEY_ID, "oncekey/tiered", token, _RETENTION_S)
                yield from self.truth.perform([Insert(claim)])
                continue
            if found.state is State.COMPLETED:
                secret: bytes = found.answer.body
                return secret
            swap = reserved_swap(found, os.urandom(32), token, _RETENTION_S)
            yield from self.truth.perform([swap])
        raise StoreUnavailable("the key of the tiered store keeps changing", sent=True)

    def examine_cache(self) -> Finding:
        """Return the finding for `oncekey doctor`: nothing that happens to the cache is unsafe."""
        reply: Any
        try:
            with contextlib.closing(self._cache.endpoint.connect()) as cache_connection:
                (reply,) = cache_connection.ask([("PING",)])
        except StoreUnavailable as error:
            reply = error
        if isinstance(reply, Exception):
            return advice(
                "cache",
                str(reply),
                "replays come from the database, and a purge is refused until it answers",
                "Start it, or correct cache=… in the URL",
            )
        return Finding("cache", f"{self._cache.endpoint} answers")

    # ------------------------------------------------------------------------------- perform

    def perform(self, verbs: Sequence[Any]) -> Op[list[Any]]:
        kind = type(verbs[0])
        if kind is Insert:
            return (yield from self._insert(verbs))
        if kind is Purge or kind is Scan or kind is Count:
            outcomes = []
            for verb in verbs:
                outcomes.append((yield from _METHODS[type(verb)](self, verb)))
            return outcomes
        yield from self._block_copies(verbs)
        return (yield from self.truth.perform(verbs))

    def _insert(self, verbs: Sequence[Insert]) -> Op[list[Any]]:
        asked_at = self._clock.monotonic()
        epochs, hits = yield from self._read_cache(verbs)
        missing = [verb for verb in verbs if verb.id not in hits]
        if not missing:
            return [hits[verb.id] for verb in verbs]
        try:
            found = yield from self.truth.perform(missing)
        except StoreUnavailable:
            if not hits:
                raise
            found = [AGAIN] * len(missing)  # retried alone; the hits need no truth
        for verb, outcome in zip(missing, found, strict=True):
            epoch = epochs.get(verb.claim.tenant)
            if isinstance(outcome, Found) and epoch is not None:
                self._queue_copy(outcome.record, epoch, asked_at)
        rest = iter(found)
        return [hits[verb.id] if verb.id in hits else next(rest) for verb in verbs]

    # ------------------------------------------------------------------------ reading the cache

    def _read_cache(
        self, verbs: Sequence[Insert]
    ) -> Op[tuple[dict[str, bytes], dict[bytes, Found]]]:
        """Return the epochs of the tenants, and the records that the cache has."""
        tenants = list({verb.claim.tenant for verb in verbs})
        keys = [self._entry_key(verb.id) for verb in verbs]
        ask = ("MGET", *map(self._epoch_key, tenants), *keys)
        replies = yield CacheQuestion([*self._take_waiting(), ask])
        if replies is None or not isinstance(replies[-1], list):
            return {}, {}
        epochs_found = dict(zip(tenants, replies[-1], strict=False))
        epochs = {tenant: epoch for tenant, epoch in epochs_found.items() if epoch is not None}
        for tenant in epochs_found.keys() - epochs.keys():
            self._queue(
                "SET", self._epoch_key(tenant), os.urandom(EPOCH_BYTES), "NX", "EX", EPOCH_S
            )
        hits: dict[bytes, Found] = {}
        for verb, key, entry in zip(verbs, keys, replies[-1][len(tenants) :], strict=True):
            if entry is None or entry == _STOP:
                continue
            record = self._decode(verb, entry, epochs.get(verb.claim.tenant))
            if record is None:
                self._queue("EVAL", _REMOVE, 1, key, entry)
            else:
                hits[verb.id] = Found(record)
        return epochs, hits

    def _decode(self, verb: Insert, entry: bytes, epoch: bytes | None) -> Record | None:
        if self._secret is None or epoch is None:
            return None
        return decode_entry(self._secret, verb.id, epoch, entry, self._clock.wall())

    def _entry_key(self, record_id: bytes) -> str:
        return self._prefix + record_id.hex()

    def _epoch_key(self, tenant: str) -> str:
        return f"{self._prefix}epoch:{hashlib.sha256(as_bytes(tenant)).hexdigest()}"

    # ------------------------------------------------------------------------ writing the cache

    def _queue(self, *command: Any, since: float | None = None) -> None:
        """Send a command with the next question to the cache."""
        self._waiting.append((self._clock.monotonic() if since is None else since, command))

    def _take_waiting(self) -> list[Command]:
        """Take the waiting commands, without those that have waited too long."""
        since, taken = self._clock.monotonic() - WAITING_S_MAX, []
        with contextlib.suppress(IndexError):  # empty, or another thread took the rest
            for _ in range(WAITING_MAX):
                taken.append(self._waiting.popleft())
        return [command for asked_at, command in taken if asked_at > since]

    def _queue_copy(self, record: Record, epoch: bytes, asked_at: float) -> None:
        """Queue a copy of a record that the truth returned at `asked_at`."""
        seconds = int(ttl_s(record))
        if seconds <= 0 or record.answer is None or self._secret is None:
            return
        entry = encode_entry(self._secret, record, record.answer, epoch, self._clock.wall())
        if len(entry) <= ENTRY_BYTES_MAX:
            key = self._entry_key(record.id)
            self._queue("SET", key, entry, "NX", "EX", seconds, since=asked_at)

    def _block_copies(self, verbs: Sequence[Verb]) -> Op[None]:
        """Before completed records change: remove their entries, and keep others from writing new
        ones.
        """
        stops: list[Command] = [
            ("SET", self._entry_key(verb.id), _STOP, "EX", STOP_S)
            for verb in verbs
            if type(verb) is Swap
            and verb.state is State.COMPLETED
            and verb.when is not When.EXPIRED  # its entry has ended already
            and verb.id not in (NOTICE_ID, MAC_KEY_ID)
        ]
        if stops:
            yield CacheQuestion(stops, needed=True)

    # ------------------------------------------------------------------- verbs over all records

    def _purge(self, verb: Purge) -> Op[int]:
        """Set a new epoch before, so that no entry is served any more; and after, so that copies
        read in between do not count.
        """
        yield self._new_epoch(verb.tenant)
        [purged] = yield from self.truth.perform([verb])
        try:
            yield self._new_epoch(verb.tenant)
        except StoreUnavailable as error:
            raise StoreUnavailable(str(error), sent=True) from error
        return int(purged)

    def _new_epoch(self, tenant: str) -> CacheQuestion:
        epoch = ("SET", self._epoch_key(tenant), os.urandom(EPOCH_BYTES), "EX", EPOCH_S)
        return CacheQuestion([epoch], needed=True)

    def _scan(self, verb: Scan) -> Op[list[Record]]:
        [records] = yield from self.truth.perform([replace(verb, limit=verb.limit + 1)])
        return [record for record in records if record.id != MAC_KEY_ID][: verb.limit]

    def _count(self, verb: Count) -> Op[dict[State, int]]:
        [counts] = yield from self.truth.perform([verb])
        [own] = yield from self.truth.perform([Find(MAC_KEY_ID)])
        if own is not None:
            counts = {**counts, own.state: max(counts[own.state] - 1, 0)}
        found: dict[State, int] = counts
        return found


_METHODS: dict[type, Any] = {
    Purge: TieredStore._purge,
    Scan: TieredStore._scan,
    Count: TieredStore._count,
}


# ------------------------------------------------------------------------------------------- URLs

SCHEME = "tiered+"
CACHE_TIMEOUT_S = 0.1
_OPTIONS = ("cache", "cache_timeout_s")


def open_url(url: str) -> TieredStore:
    """Open `tiered+postgresql://user:password@host/database?cache=redis://host:6379/0`.

    The URL of the truth follows `tiered+`. `cache` is the URL of one Redis or Valkey, with special
    characters percent-encoded; `cache_timeout_s` is how long it may take to answer.
    """
    place, _, query = url.removeprefix(SCHEME).partition("?")
    ours: dict[str, str] = {}
    others = []  # unparsed: each store reads its own options
    for option in filter(None, query.split("&")):
        name, _, text = option.partition("=")
        if name in _OPTIONS:
            ours[name] = unquote(text)  # a `+` stays a `+`: passwords have them
        else:
            others.append(option)
    if not ours.get("cache"):
        raise Misuse("a tiered store needs a cache: …?cache=redis://host:6379/0")
    cache = redis_store.open_url(ours["cache"])
    if type(cache) is not redis_store.RedisStore:
        raise Misuse("the cache of a tiered store is one server: write cache=redis://host:6379/0")
    timeout_s = float(ours.get("cache_timeout_s") or CACHE_TIMEOUT_S)
    check_waits(cache_timeout_s=timeout_s)
    truth = open_store("?".join(filter(None, (place, "&".join(others)))))
    return TieredStore(truth, cache.endpoint.with_timeout(timeout_s), prefix=cache.prefix)
