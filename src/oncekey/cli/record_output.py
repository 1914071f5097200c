"""A record in words, and as JSON."""

from __future__ import annotations

import base64
from typing import Any

from oncekey._core.key import short_hash
from oncekey._core.printable import printable
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.retention import answer_left_s, is_tombstone, tombstone_s, without_tombstone
from oncekey._core.secrets import CLOSED
from oncekey.cli.output import duration


def state_of(record: Record) -> str:
    """The state and what time has made of it."""
    if record.expired:
        return f"{record.state}, expired"
    return f"{record.state}, lapsed" if record.lapsed else str(record.state)


def meaning_of(record: Record) -> str:
    """What the next request with this key gets."""
    if record.expired:
        return "counts as absent: the next request runs, the next sweep removes it"
    match record.state:
        case State.COMPLETED if is_tombstone(record):
            return (
                "a tombstone: a retry is told that it was done, so long ago that it cannot say more"
            )
        case State.COMPLETED if record.answer is not None and record.answer.body is not None:
            return "a retry gets the kept answer"
        case State.COMPLETED:
            return "a retry is told that it happened; its answer was not kept"
        case State.RELEASED if record.no_effect:
            return "the next request with this key runs, also a different one"
        case State.RELEASED:
            return "it failed and was given back: a retry runs"
        case State.UNKNOWN:
            return "nobody knows how it ended: retries are refused until somebody finds out"
    if not record.lapsed:
        return "an attempt runs: a retry is told to wait"
    if record.recovery == "block":
        return "its process died or hung: a retry makes its outcome unknown"
    if record.recovery in ("resume", "ask"):
        return "its process died or hung: a retry or a recoverer finishes it"
    return "its process died or hung: a retry takes it over"


def key_of(record: Record, *, show_key: bool) -> str:
    if not record.key:
        return "(blank)" if is_tombstone(record) else "(purged)"
    if record.key == CLOSED:
        return CLOSED
    return record.key if show_key else short_hash(record.key)


def expiry(record: Record) -> str:
    left = duration(record.expires_in_s)
    if record.expired:
        return f"{left} ago"
    over = tombstone_s(record) and f", its answer {_when(answer_left_s(record))}"
    return f"in {left}{over or ''}"


def _when(left_s: float) -> str:
    return f"in {duration(left_s)}" if left_s > 0 else f"{duration(left_s)} ago"


def facts_of(record: Record, steps: list[Step], *, show_key: bool) -> list[tuple[str, str]]:
    hidden = "" if show_key or record.key in ("", CLOSED) else "  (its hash; --show-keys shows it)"
    lapses = f", {record.lapses} of them lapsed" if record.lapses else ""
    lines = [
        ("id", record.id.hex()),
        ("state", state_of(record)),
        ("that is", meaning_of(record)),
        ("tenant", printable(record.tenant)),
        ("operation", printable(record.operation)),
        ("key", printable(key_of(record, show_key=show_key)) + hidden),
        ("attempts", f"{record.attempt}{lapses}"),
        ("fence", str(record.fence)),
        ("recovery", printable(record.recovery)),
        ("first attempt", f"{duration(record.age_s)} ago"),
    ]
    if record.state is State.RUNNING:
        left = duration(record.lease_left_s)
        ended = f"over since {left}" if record.lapsed else f"{left} left of {record.lease_s:g} s"
        lines.append(("lease", ended))
    lines += [("expires", expiry(record)), ("answer", answer_in_short(record.answer))]
    if record.resource_id:
        lines.append(("resource", printable(record.resource_id)))
    lines.append(("retries", f"{record.replays} replayed, {record.conflicts} refused"))
    for step in steps:
        lines.append(
            ("step", f"{printable(step.name)}: {'done' if step.result is not None else 'started'}")
        )
    return lines


def answer_in_short(answer: Answer | None) -> str:
    if answer is None:
        return "none"
    if answer.body is None:
        return f"status {answer.status}, without its body"
    return f"status {answer.status}, {len(answer.body):,} bytes  (--body shows it)"


def answer_in_full(answer: Answer) -> str:
    lines = [
        printable(f"{name.decode('latin-1')}: {value.decode('latin-1')}", 2000)
        for name, value in without_tombstone(answer).headers
    ]
    body = answer.body or b""
    text = body.decode("utf-8", "backslashreplace")
    lines += ["", *(printable(row, len(row) + 1) for row in text.splitlines())]
    return "\n".join(lines)


# ------------------------------------------------------------------------ as JSON


def described(record: Record, *, show_key: bool) -> dict[str, Any]:
    """A record without its content."""
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


def answer_described(answer: Answer | None) -> dict[str, Any] | None:
    """The content; a body that is not text stands in base64."""
    if answer is None:
        return None
    given = without_tombstone(answer).headers
    headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in given]
    shown: dict[str, Any] = {"headers": headers, "body": None}
    if answer.body is not None:
        try:
            shown["body"] = answer.body.decode()
        except UnicodeDecodeError:
            shown["body_base64"] = base64.b64encode(answer.body).decode()
    return shown
