"""Verbs as script calls for Redis, and replies as outcomes. Pure.

The scripts are the `*.lua` files, one for each verb that names a record. Numbers travel as decimal
integers, times and fences in microseconds, content as bytes that no script parses.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from oncekey._core.framing import as_bytes
from oncekey._core.record import (
    Answer,
    Claim,
    Glimpse,
    Record,
    State,
    Step,
    decode_headers,
    encode_headers,
)
from oncekey._core.verbs import (
    AppendStep,
    Done,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Refused,
    Requested,
    Steps,
    Swap,
)
from oncekey.errors import CorruptRecord
from oncekey.stores.sql import decode_digests, encode_digests

Command = tuple[Any, ...]

# In the order of `read_record` in record.lua. The body is last, so that reads can leave it out.
FIELDS = (
    "state",
    "fence",
    "token",
    "tenant",
    "operation",
    "key",
    "fingerprint",
    "fingerprint_version",
    "lease_us",
    "retention_us",
    "recovery",
    "schema_version",
    "field_digests",
    "attempt",
    "lapses",
    "beat",
    "no_effect",
    "status",
    "headers",
    "resource_id",
    "created",
    "lease_until",
    "expires",
    "replays",
    "conflicts",
    "body",
)
# fmt: on

STATES = {state.value.encode(): state for state in State}
_STEP = struct.Struct("!?H")  # whether there is a result; the length of the digest
_STEP_NUMBER_DIGITS = 8


# ------------------------------------------------------------------ scripts


def _script(name: str) -> str:
    folder = resources.files("oncekey.stores.redis")
    parts = [
        folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in ("record", name)
    ]
    return "\n".join(parts)


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_NAMES = (
    *("insert", "swap", "find", "peek", "append_step", "steps", "requested"),
    *("tally", "abandoned", "sweep", "purge", "schema", "mark"),
)
SCRIPTS = {_sha(text): text for text in map(_script, _NAMES)}
"""The scripts by their SHA-1, to load into a server that does not know them."""
_SHAS = dict(zip(_NAMES, SCRIPTS, strict=True))


def call(name: str, key: str, *arguments: Any) -> Command:
    """Return the command that runs a script on one key."""
    return ("EVALSHA", _SHAS[name], 1, key, *arguments)


# ------------------------------------------------------------------ verbs as commands


def micros(seconds: float) -> int:
    return round(seconds * 1_000_000)


def _insert(verb: Insert, key: str) -> Command:
    claim = verb.claim
    return call(
        "insert",
        key,
        claim.token,
        micros(claim.lease_s),
        micros(claim.retention_s),
        as_bytes(claim.tenant),
        as_bytes(claim.operation),
        as_bytes(claim.key),
        claim.fingerprint,
        claim.fingerprint_version,
        claim.recovery,
        claim.schema_version,
        encode_digests(claim.field_digests) or b"",
        *_request_fields(claim),
    )


def _swap(verb: Swap, key: str) -> Command:
    return call(
        "swap",
        key,
        verb.state,
        verb.fence,
        verb.token,
        verb.when.value,
        verb.to,
        int(verb.raise_fence),
        micros(verb.lease_s or 0.0),
        micros(verb.retention_s),
        int(verb.fresh),
        int(verb.no_effect),
        "" if verb.claim is None else verb.claim.recovery,
        *_changes(verb),
    )


def _changes(verb: Swap) -> list[Any]:
    """Return the names and values of what this swap writes besides state, fence and deadlines."""
    changes: list[Any] = []
    if verb.new_token is not None:
        changes += ("token", verb.new_token)
    if verb.attempt is not None:
        changes += ("attempt", verb.attempt)
    if verb.lapses is not None:
        changes += ("lapses", verb.lapses)
    if verb.claim is not None:
        changes += _claim_fields(verb.claim)
    if verb.to is State.COMPLETED:
        if verb.answer is not None:
            changes += (
                "status",
                int(verb.answer.status),  # the driver rejects http.HTTPStatus
                "headers",
                encode_headers(verb.answer.headers),
            )
            if verb.answer.body is not None:
                changes += ("body", verb.answer.body)
        if verb.resource_id is not None:
            changes += ("resource_id", as_bytes(verb.resource_id))
    return changes


def _claim_fields(claim: Claim) -> list[Any]:
    """Return the fields that a new attempt writes, including the key, which a purge may have
    blanked.
    """
    return [
        *("tenant", as_bytes(claim.tenant)),
        *("operation", as_bytes(claim.operation)),
        *("key", as_bytes(claim.key)),
        *("fingerprint", claim.fingerprint),
        *("fingerprint_version", claim.fingerprint_version),
        *("recovery", claim.recovery),
        *("schema_version", claim.schema_version),
        *("field_digests", encode_digests(claim.field_digests) or b""),
        *("lease_us", micros(claim.lease_s)),
        *("retention_us", micros(claim.retention_s)),
        *_request_fields(claim),
    ]


def _request_fields(claim: Claim) -> tuple[Any, ...]:
    if claim.request is None:
        return ()
    return "request", claim.request, "request_of", claim.token


def _find(verb: Find, key: str) -> Command:
    return call("find", key)


def _peek(verb: Peek, key: str) -> Command:
    return call("peek", key)


def _append_step(verb: AppendStep, key: str) -> Command:
    step = verb.step
    value = (
        _STEP.pack(step.result is not None, len(step.digest)) + step.digest + (step.result or b"")
    )
    return call("append_step", key, verb.fence, verb.token, as_bytes(step.name), value)


def _steps(verb: Steps, key: str) -> Command:
    return call("steps", key)


def _request(verb: Requested, key: str) -> Command:
    return call("requested", key)


# ------------------------------------------------------------------ replies as outcomes


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def record(record_id: bytes, row: Sequence[Any], now: int) -> Record:
    """Build a record from its fields, in the order of `FIELDS`; the body may be absent."""
    status, headers, body = row[17], row[18], row[25] if len(row) > 25 else None
    answer = None
    if status is not None:
        # A purge keeps the status: it shows that there was a response, not what it said.
        answer = Answer(int(status), decode_headers(headers) if headers else (), body)
    try:
        return Record(
            id=record_id,
            state=STATES[row[0]],
            fence=int(row[1]),
            token=row[2],
            tenant=_decode(row[3]),
            operation=_decode(row[4]),
            key=_decode(row[5]),
            fingerprint=row[6],
            fingerprint_version=int(row[7]),
            lease_s=int(row[8]) / 1_000_000,
            retention_s=int(row[9]) / 1_000_000,
            recovery=row[10].decode(),
            schema_version=int(row[11]),
            field_digests=decode_digests(row[12]),
            attempt=int(row[13]),
            lapses=int(row[14] or 0),
            beat=int(row[15] or 0),
            no_effect=row[16] == b"1",
            answer=answer,
            resource_id=None if row[19] is None else _decode(row[19]),
            age_s=(now - int(row[20])) / 1_000_000,
            lease_left_s=(int(row[21]) - now) / 1_000_000,
            expires_in_s=(int(row[22]) - now) / 1_000_000,
            replays=int(row[23] or 0),
            conflicts=int(row[24] or 0),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptRecord(
            f"the record {record_id.hex()} cannot be read ({error!r}): "
            "something other than oncekey wrote to its key"
        ) from error


def _insert_outcome(verb: Insert, reply: Any) -> Inserted | Found:
    if type(reply) is int:
        return Inserted(reply)
    return Found(record(verb.claim.id, reply[:-1], reply[-1]))


def _write_outcome(verb: Swap | AppendStep, reply: Any) -> Done | Refused:
    if type(reply) is int:
        return Done(reply)
    return Refused(None if reply is None else record(verb.id, reply[:-1], reply[-1]))


def _find_outcome(verb: Find, reply: Any) -> Record | None:
    return None if reply is None else record(verb.id, reply[:-1], reply[-1])


def _peek_outcome(verb: Peek, reply: Any) -> Glimpse | None:
    if reply is None:
        return None
    state, fence, lease_until, now = reply
    return Glimpse(STATES[state], int(fence), (int(lease_until) - now) / 1_000_000)


def _request_outcome(verb: Requested, reply: Any) -> bytes | None:
    request: bytes | None = reply
    return request


def _steps_outcome(verb: Steps, reply: Any) -> list[Step]:
    names, values = reply[::2], reply[1::2]
    ordered = sorted(zip(values, names, strict=True))  # by step number, which begins each value
    return [_step(name, value) for value, name in ordered]


def _step(name: bytes, value: bytes) -> Step:
    has_result, digest_length = _STEP.unpack_from(value, _STEP_NUMBER_DIGITS)
    digest_at = _STEP_NUMBER_DIGITS + _STEP.size
    result_at = digest_at + digest_length
    return Step(
        _decode(name), value[digest_at:result_at], value[result_at:] if has_result else None
    )


COMMANDS: dict[type, Callable[[Any, str], Command]] = {
    Insert: _insert,
    Swap: _swap,
    Find: _find,
    Peek: _peek,
    AppendStep: _append_step,
    Steps: _steps,
    Requested: _request,
}
"""The command for each kind of verb, given its record's key."""

OUTCOMES: dict[type, Callable[[Any, Any], Any]] = {
    Insert: _insert_outcome,
    Swap: _write_outcome,
    Find: _find_outcome,
    Peek: _peek_outcome,
    AppendStep: _write_outcome,
    Steps: _steps_outcome,
    Requested: _request_outcome,
}
"""The outcome of each kind of verb, given its reply."""
