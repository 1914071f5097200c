"""The book of a sealed store: its id key, wrapped by each secret that is in use.

The id key is made once, for hashed ids must never change: a retry would not find its record. So it
is not derived from a secret, which do change, but kept here, once per secret. Whoever opens the
book adds the secrets that it knows and the book does not: from then on either of them opens it.

It is one record at `notice.NOTICE_ID`, which is made and changed by compare-and-set like any other.
Of processes that make it at once the first to complete it wins, and none waits for another that may
have died over it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from oncekey._core.notice import BOOK, NEVER_SEALED, NOTICE_ID, notice_claim
from oncekey._core.op import Op
from oncekey._core.record import TOKEN_BYTES, Record, State
from oncekey._core.reserved_records import reserved_swap
from oncekey._core.secrets import Secret
from oncekey._core.values import value
from oncekey._core.verbs import Done, Find, Insert, Scan
from oncekey.errors import CorruptRecord, Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores.base import Store
from oncekey.stores.sealed.envelope import Head, new_key, open_envelope, seal

ROUNDS_MAX = 16
KEPT_S = 100 * 365 * 86_400.0
"""For how long the book is kept, counted from when somebody last wrote in it."""
KEPT_S_MIN = KEPT_S / 2
_WRAPPED = b"w"
_PLACE = b"oncekey/book/1"


@value
class Book:
    """What the book says to whoever has one of its secrets."""

    id_key: bytes
    wraps: Mapping[bytes, bytes]
    """By the ids of the secrets."""


def open_book(store: Store, secrets: Sequence[Secret], known: bytes | None) -> Op[bytes]:
    """The id key. Makes the book where there is none yet, and adds the secrets that it lacks.

    `known` is the id key that this process has worked with so far: another one is refused, and a
    book that was lost is written again. Raises `StoreUnfit`.
    """
    for _ in range(ROUNDS_MAX):
        found = yield from find_book(store)
        made = found is not None and found.state is State.COMPLETED
        if not made and known is None and not (yield from _is_new(store)):
            continue
        if found is None:
            yield from store.perform([Insert(notice_claim(BOOK, _token(), KEPT_S))])
            continue
        book = read_book(found, secrets) if made else Book(known or new_key(), {})
        if known is not None and known != book.id_key:
            raise StoreUnfit(
                "the store has another id key than when this process started: it was emptied or "
                "exchanged. Start this process again"
            )
        lacking = [secret for secret in secrets if secret.id not in book.wraps]
        lasts = made and found.expires_in_s > KEPT_S_MIN
        if lasts and not lacking:
            return book.id_key
        wraps = {**book.wraps, **{secret.id: _wrap(secret, book.id_key) for secret in lacking}}
        if (yield from write_book(store, found, wraps)):
            return book.id_key
    raise _contended()


def find_book(store: Store) -> Op[Record | None]:
    """The book's record, also one that is not finished; None where there is none."""
    [found] = yield from store.perform([Find(NOTICE_ID)])
    if found is not None and found.operation != BOOK:
        raise StoreUnfit(
            "the store was used without sealing: its records would not be found any more. Seal a "
            "store that is empty (docs/sealed.md)"
        )
    record: Record | None = found
    return record


def _is_new(store: Store) -> Op[bool]:
    """Whether nothing was ever kept here; raises `StoreUnfit` where something is, and no book that
    is finished: nobody keeps anything before it is.

    False if one came in between.
    """
    [records] = yield from store.perform([Scan(len(NEVER_SEALED) + 1)])
    if all(record.id in NEVER_SEALED for record in records):
        return True
    found = yield from find_book(store)
    if found is not None and found.state is State.COMPLETED:
        return False
    raise StoreUnfit(
        "the store holds records, but not the id key that sealed ones are found by. If they are "
        "not sealed: seal a store that is empty, or wait until they have expired and run `oncekey "
        "sweep`. If they are, the store has lost its book: restore it (docs/sealed.md)"
    )


# ------------------------------------------------------------------------------------- reading


def read_book(found: Record, secrets: Sequence[Secret]) -> Book:
    """What stands in a book that is finished."""
    wraps = read_wraps(found)
    for secret in secrets:
        if secret.id in wraps:
            try:
                return Book(open_envelope(secret.wrapping, wraps[secret.id], _PLACE), wraps)
            except CorruptRecord as error:
                raise StoreUnfit(f"the id key of the sealed store: {error}") from error
    raise StoreUnfit(
        "none of the secrets that were given opens this store: they are "
        f"{_ids(secret.id for secret in secrets)}, it is opened by {_ids(wraps)}. Nothing was run "
        "or changed; give one of those"
    )


def read_wraps(found: Record) -> dict[bytes, bytes]:
    """The wrapped id keys, by the ids of their secrets."""
    body = found.answer and found.answer.body
    try:
        said: Any = json.loads(body or b"")
        if said["version"] != 1:
            raise ValueError(f"version {said['version']}")
        return {
            bytes.fromhex(name): base64.b64decode(wrap, validate=True)
            for name, wrap in said["wraps"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreUnfit(f"the book of the sealed store cannot be read: {error!r:.200}") from error


def _ids(found: Any) -> str:
    return ", ".join(sorted(name.hex() for name in found)) or "none"


# ------------------------------------------------------------------------------------- writing


def write_book(store: Store, found: Record, wraps: Mapping[bytes, bytes]) -> Op[bool]:
    """Replace what stands there; False if somebody else did meanwhile."""
    said = {name.hex(): base64.b64encode(wrap).decode("ascii") for name, wrap in wraps.items()}
    body = json.dumps({"version": 1, "wraps": said}).encode()
    swap = reserved_swap(found, body, _token(), KEPT_S)
    [outcome] = yield from store.perform([swap])
    return isinstance(outcome, Done)


def forget(store: Store, secret_id: bytes) -> Op[None]:
    """Take away what a secret opens the book by."""
    for _ in range(ROUNDS_MAX):
        found = yield from find_book(store)
        wraps = {} if found is None else read_wraps(found)
        if found is None or secret_id not in wraps:
            raise Misuse(f"no secret {secret_id.hex()} opens this store")
        del wraps[secret_id]
        if (yield from write_book(store, found, wraps)):
            return
    raise _contended()


def _contended() -> StoreUnavailable:
    return StoreUnavailable("the book of the sealed store keeps changing", sent=True)


def _wrap(secret: Secret, id_key: bytes) -> bytes:
    return seal(secret.wrapping, Head(_WRAPPED, secret.id), id_key, _PLACE)


def _token() -> bytes:
    return new_key()[:TOKEN_BYTES]
