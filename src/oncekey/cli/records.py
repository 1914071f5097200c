"""Find the record that a command names, and show it as text or JSON."""

from __future__ import annotations

import base64
from typing import Any

from oncekey._core.key import derive, record_id, short_hash
from oncekey._core.printable import printable
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.retention import answer_left_s, is_tombstone, tombstone_s, without_tombstone
from oncekey._core.verbs import Find, Scan
from oncekey.cli.output import duration
from oncekey.errors import Misuse
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sealed.secrets import CLOSED

ID_BYTES = 32
ID_DIGITS_MIN = 4


def find_record(connection: StoreConnection, given: str) -> Record | None:
    """Find a record by one argument: the first digits of its id, or TENANT/OPERATION/KEY.

    The operation may contain slashes; tenant and key may not. It is empty if the scope is the
    tenant.
    """
    if "/" not in given:
        return find_by_digits(connection, given)
    tenant, _, rest = given.partition("/")
    operation, slash, key = rest.rpartition("/")
    if not tenant or not slash or not key:
        raise Misuse("write a record as the digits of its id, or as TENANT/OPERATION/KEY")
    return find_by_key(connection, tenant, operation or None, key)


def find_by_key(
    connection: StoreConnection, tenant: str, operation: str | None, given: str
) -> Record | None:
    """Find the record of a key or of a message's id. An id that cannot be a key is stored by its
    digest.
    """
    both = [key for key in dict.fromkeys((given, derive(given))) if isinstance(key, str)]
    found = connection.perform([Find(record_id(tenant, operation, key)) for key in both])
    return next((record for record in found if record is not None), None)


def find_by_digits(connection: StoreConnection, given: str) -> Record | None:
    """Find the record whose id begins with these digits; there may be only one."""
    digits = id_digits(given)
    if len(digits) < ID_DIGITS_MIN:
        raise Misuse(f"an id needs at least {ID_DIGITS_MIN} digits")
    lowest = int(digits.ljust(ID_BYTES * 2, "0"), 16)
    after = (lowest - 1).to_bytes(ID_BYTES, "big") if lowest else b""
    [records] = connection.perform([Scan(2, after=after)])
    ids = [record.id for record in records if record.id.hex().startswith(digits)]
    if len(ids) > 1:
        raise Misuse(f"more than one id begins with {digits}: give more digits")
    if not ids:
        return None
    [record] = connection.perform([Find(ids[0])])  # a scan leaves the body out
    found: Record | None = record
    return found


def id_digits(text: str) -> str:
    digits = text.strip().lower()
    if not digits or len(digits) > ID_BYTES * 2 or set(digits) - set("0123456789abcdef"):
        raise Misuse(
            f"an id is up to {ID_BYTES * 2} hexadecimal digits, as `oncekey list` shows it"
        )
    return digits


# ----------------------------------------------------------------------------------------- as text


def state_text(record: Record) -> str:
    """Return the state, and whether the record is lapsed or expired."""
    if record.expired:
        return f"{record.state}, expired"
    return f"{record.state}, lapsed" if record.lapsed else str(record.state)


def explain(record: Record) -> str:
    """Say what the next request with this key gets."""
    if record.expired:
        return "counts as absent: the next request runs, and the next sweep removes the record"
    match record.state:
        case State.COMPLETED if is_tombstone(record):
            return "a tombstone: a retry learns that it was done; its response is gone"
        case State.COMPLETED if record.answer is not None and record.answer.body is not None:
            return "a retry gets the stored response"
        case State.COMPLETED:
            return "a retry learns that it was done; the response was not stored"
        case State.RELEASED if record.no_effect:
            return "the next request with this key runs, even a different one"
        case State.RELEASED:
            return "it failed and was released: a retry runs"
        case State.UNKNOWN:
            return "nobody knows how it ended: retries are refused until an operator resolves it"
    if not record.lapsed:
        return "an attempt is running: a retry is told to wait"
    if record.recovery == "block":
        return "its process died or hung: a retry makes its outcome unknown"
    if record.recovery in ("resume", "ask"):
        return "its process died or hung: a retry or a recoverer finishes it"
    return "its process died or hung: a retry takes it over"


def shown_key(record: Record, *, show_key: bool) -> str:
    if not record.key:
        return "(blank)" if is_tombstone(record) else "(purged)"
    if record.key == CLOSED:
        return CLOSED
    return record.key if show_key else short_hash(record.key)


def expiry_text(record: Record) -> str:
    left = duration(record.expires_in_s)
    if record.expired:
        return f"{left} ago"
    over = tombstone_s(record) and f", its answer {_when(answer_left_s(record))}"
    return f"in {left}{over or ''}"


def _when(left_s: float) -> str:
    return f"in {duration(left_s)}" if left_s > 0 else f"{duration(left_s)} ago"


def record_lines(record: Record, steps: list[Step], *, show_key: bool) -> list[tuple[str, str]]:
    hidden = "" if show_key or record.key in ("", CLOSED) else "  (its hash; --show-keys shows it)"
    lapses = f", {record.lapses} of them lapsed" if record.lapses else ""
    lines = [
        ("id", record.id.hex()),
        ("state", state_text(record)),
        ("that is", explain(record)),
        ("tenant", printable(record.tenant)),
        ("operation", printable(record.operation)),
        ("key", printable(shown_key(record, show_key=show_key)) + hidden),
        ("attempts", f"{record.attempt}{lapses}"),
        ("fence", str(record.fence)),
        ("recovery", printable(record.recovery)),
        ("first attempt", f"{duration(record.age_s)} ago"),
    ]
    if record.state is State.RUNNING:
        left = duration(record.lease_left_s)
        ended = f"over since {left}" if record.lapsed else f"{left} left of {record.lease_s:g} s"
        lines.append(("lease", ended))
    lines += [("expires", expiry_text(record)), ("answer", answer_summary(record.answer))]
    if record.resource_id:
        lines.append(("resource", printable(record.resource_id)))
    lines.append(("retries", f"{record.replays} replayed, {record.conflicts} refused"))
    for step in steps:
        lines.append(
            ("step", f"{printable(step.name)}: {'done' if step.result is not None else 'started'}")
        )
    return lines


def answer_summary(answer: Answer | None) -> str:
    if answer is None:
        return "none"
    if answer.body is None:
        return f"status {answer.status}, without its body"
    return f"status {answer.status}, {len(answer.body):,} bytes  (--body shows it)"


def answer_text(answer: Answer) -> str:
    lines = [
        printable(f"{name.decode('latin-1')}: {value.decode('latin-1')}", 2000)
        for name, value in without_tombstone(answer).headers
    ]
    body = answer.body or b""
    text = body.decode("utf-8", "backslashreplace")
    lines += ["", *(printable(row, len(row) + 1) for row in text.splitlines())]
    return "\n".join(lines)


# ------------------------------------------------------------------------ as JSON


def record_json(record: Record, *, show_key: bool) -> dict[str, Any]:
    """Return a record as JSON, without its content."""
    running = record.state is State.RUNNING
    shown: dict[str, Any] = {
        "id": record.id.hex(),
        "state": str(record.state),
        "lapsed": record.lapsed,
        "expired": record.expired,
        "tenant": record.tenant,
        "operation": record.operation,
        "key_hash": None if record.key in ("", CLOSED) else short_hash(record.key),
        "attempt": record.attempt,
        "lapses": record.lapses,
        "fence": record.fence,
        "recovery": record.recovery,
        "no_effect": record.no_effect,
        "age_s": round(record.age_s, 3),
        "lease_left_s": round(record.lease_left_s, 3) if running else None,
        "expires_in_s": round(record.expires_in_s, 3),
        "status": None if record.answer is None else record.answer.status,
        "resource_id": record.resource_id,
        "replays": record.replays,
        "conflicts": record.conflicts,
    }
    if show_key:
        shown["key"] = record.key or None
    return shown


def answer_json(answer: Answer | None) -> dict[str, Any] | None:
    """Return the content as JSON; a body that is not text is in base64."""
    if answer is None:
        return None
    lines = without_tombstone(answer).headers
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in lines]
    shown: dict[str, Any] = {"headers": headers, "body": None}
    if answer.body is not None:
        try:
            shown["body"] = answer.body.decode()
        except UnicodeDecodeError:
            shown["body_base64"] = base64.b64encode(answer.body).decode()
    return shown
