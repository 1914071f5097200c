"""The key ring of a sealed store: its id key, wrapped by each secret in use.

The id key is created once, because hashed ids must never change: a retry would not find its record.
So it is not derived from a secret, which do change, but stored here, once per secret. A process
that opens the key ring adds the secrets that it knows and the key ring lacks: from then on each of
them opens it.

The key ring is one record at `notice.NOTICE_ID`, created and changed by compare-and-set like any
other. Of processes that create it at the same time, the first to complete it wins, and none waits
for another that may have died in between.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from oncekey._core.notice import KEYRING, NEVER_SEALED, NOTICE_ID, notice_claim
from oncekey._core.op import Op
from oncekey._core.record import TOKEN_BYTES, Record, State
from oncekey._core.reserved_records import reserved_swap
from oncekey._core.values import value
from oncekey._core.verbs import Done, Find, Insert, Scan
from oncekey.errors import CorruptRecord, Misuse, StoreUnavailable, StoreUnfit
from oncekey.stores.base import Store
from oncekey.stores.sealed.envelope import EnvelopeHead, new_key, open_envelope, seal
from oncekey.stores.sealed.secrets import Secret

ROUNDS_MAX = 16
RETENTION_S = 100 * 365 * 86_400.0
"""How long the key ring is kept, counted from its last write."""
RETENTION_S_MIN = RETENTION_S / 2
_WRAPPED = b"w"
_PLACE = b"oncekey/book/1"


@value
class Keyring:
    """The content of the key ring, opened by one of its secrets."""

    id_key: bytes
    wraps: Mapping[bytes, bytes]
    """The wrapped id key, by the id of each secret."""


def open_keyring(store: Store, secrets: Sequence[Secret], known: bytes | None) -> Op[bytes]:
    """Return the id key. Create the key ring if there is none, and add the secrets that it lacks.

    `known` is the id key that this process has used so far: a different one is refused, and a lost
    key ring is written again. Raise `StoreUnfit`.
    """
    for _ in range(ROUNDS_MAX):
        found = yield from find_keyring(store)
        is_complete = found is not None and found.state is State.COMPLETED
        if not is_complete and known is None and not (yield from _is_new(store)):
            continue
        if found is None:
            yield from store.perform([Insert(notice_claim(KEYRING, _token(), RETENTION_S))])
            continue
        keyring = read_keyring(found, secrets) if is_complete else Keyring(known or new_key(), {})
        if known is not None and known != keyring.id_key:
            raise StoreUnfit(
                "the store has another id key than when this process started: it was emptied or "
                "replaced. Restart this process"
            )
        lacking = [secret for secret in secrets if secret.id not in keyring.wraps]
        lasts_long_enough = is_complete and found.expires_in_s > RETENTION_S_MIN
        if lasts_long_enough and not lacking:
            return keyring.id_key
        wraps = {
            **keyring.wraps,
            **{secret.id: _wrap(secret, keyring.id_key) for secret in lacking},
        }
        if (yield from write_keyring(store, found, wraps)):
            return keyring.id_key
    raise _contention_error()


def find_keyring(store: Store) -> Op[Record | None]:
    """Return the key ring's record, finished or not; None if there is none."""
    [found] = yield from store.perform([Find(NOTICE_ID)])
    if found is not None and found.operation != KEYRING:
        raise StoreUnfit(
            "the store was used without sealing: its records would no longer be found. Seal an "
            "empty store (docs/sealed.md)"
        )
    record: Record | None = found
    return record


def _is_new(store: Store) -> Op[bool]:
    """Return whether the store has no records; raise `StoreUnfit` if it has some without a finished
    key ring, since no process writes before the key ring is finished.

    Return False if another process created one in between.
    """
    [records] = yield from store.perform([Scan(len(NEVER_SEALED) + 1)])
    if all(record.id in NEVER_SEALED for record in records):
        return True
    found = yield from find_keyring(store)
    if found is not None and found.state is State.COMPLETED:
        return False
    raise StoreUnfit(
        "the store holds records, but not the id key that finds sealed ones. If they are not "
        "sealed: seal an empty store, or wait until they have expired and run `oncekey sweep`. If "
        "they are sealed, the store has lost its id key: restore it (docs/sealed.md)"
    )


# ------------------------------------------------------------------------------------- reading


def read_keyring(found: Record, secrets: Sequence[Secret]) -> Keyring:
    """Open a finished key ring with one of the secrets."""
    wraps = read_wraps(found)
    for secret in secrets:
        if secret.id in wraps:
            try:
                return Keyring(open_envelope(secret.wrapping, wraps[secret.id], _PLACE), wraps)
            except CorruptRecord as error:
                raise StoreUnfit(f"the id key of the sealed store: {error}") from error
    raise StoreUnfit(
        "none of this process's secrets opens this store: they are "
        f"{_ids(secret.id for secret in secrets)}, it is opened by {_ids(wraps)}. Nothing was run "
        "or changed; add one of those"
    )


def read_wraps(found: Record) -> dict[bytes, bytes]:
    """Return the wrapped id keys, by the ids of their secrets."""
    body = found.answer and found.answer.body
    try:
        content: Any = json.loads(body or b"")
        if content["version"] != 1:
            raise ValueError(f"version {content['version']}")
        return {
            bytes.fromhex(name): base64.b64decode(wrap, validate=True)
            for name, wrap in content["wraps"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreUnfit(
            f"the key ring of the sealed store cannot be read: {error!r:.200}"
        ) from error


def _ids(found: Any) -> str:
    return ", ".join(sorted(name.hex() for name in found)) or "none"


# ------------------------------------------------------------------------------------- writing


def write_keyring(store: Store, found: Record, wraps: Mapping[bytes, bytes]) -> Op[bool]:
    """Replace the key ring; return False if another process changed it meanwhile."""
    content = {name.hex(): base64.b64encode(wrap).decode("ascii") for name, wrap in wraps.items()}
    body = json.dumps({"version": 1, "wraps": content}).encode()
    swap = reserved_swap(found, body, _token(), RETENTION_S)
    [outcome] = yield from store.perform([swap])
    return isinstance(outcome, Done)


def remove_secret(store: Store, secret_id: bytes) -> Op[None]:
    """Remove a secret from the key ring."""
    for _ in range(ROUNDS_MAX):
        found = yield from find_keyring(store)
        wraps = {} if found is None else read_wraps(found)
        if found is None or secret_id not in wraps:
            raise Misuse(f"no secret {secret_id.hex()} opens this store")
        del wraps[secret_id]
        if (yield from write_keyring(store, found, wraps)):
            return
    raise _contention_error()


def _contention_error() -> StoreUnavailable:
    return StoreUnavailable("the key ring of the sealed store keeps changing", sent=True)


def _wrap(secret: Secret, id_key: bytes) -> bytes:
    return seal(secret.wrapping, EnvelopeHead(_WRAPPED, secret.id), id_key, _PLACE)


def _token() -> bytes:
    return new_key()[:TOKEN_BYTES]
