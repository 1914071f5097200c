"""Errors of requests that got no response: the library's own error, with a note of ours.

They contain no key (P12), because errors and their notes are logged. A short hash stands for the
key; `outcome_of(error)` has the key itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote

from oncekey._core.key import short_hash
from oncekey._core.reasons import GaveUp, GiveUpKind


def error_note(
    key: str | None, attempts: int, gave_up: GaveUp | None, *, sent: bool, first: bool
) -> str:
    """Write the note for an error. `first`: nothing was sent with this key before this call."""
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    why = f" Not again, because {gave_up.sentence}." if gave_up else ""
    if sent:
        how = f"in {times} it was sent, and nobody knows whether it was carried out."
    elif first:
        how = f"not sent: in {times} no connection was made, so it was not carried out."
    else:
        how = (
            f"not sent this time: in {times} no connection was made. Whether an earlier request "
            "with this key was carried out is unknown."
        )
    return f"oncekey: {how}{why} {_advice(key, gave_up, sent)}"


def _advice(key: str | None, gave_up: GaveUp | None, sent: bool) -> str:
    if gave_up is not None and gave_up.kind is GiveUpKind.FORGOTTEN:
        return "Check at the server whether it was carried out."
    if key is not None:
        return (
            f"To retry, send the same request with the same key (key={short_hash(key)}; "
            "oncekey.client.outcome_of(error).key is the key itself)."
        )
    if sent:
        return "It had no key: check whether it was carried out before you send it again."
    return "To retry, send it again."


def redact_error(error: BaseException, key: str) -> None:
    """Remove a key from an error's texts: a URL or a server's message may contain it."""
    for each in chain(error):
        shown = tuple(redact(text, key) if isinstance(text, str) else text for text in each.args)
        if shown != each.args:
            each.args = shown


def redact(text: str, key: str) -> str:
    """Replace a key, also percent-encoded, by its short hash."""
    for spelling in {key, quote(key, safe="")}:
        pattern = rf"(?<![0-9A-Za-z]){re.escape(spelling)}(?![0-9A-Za-z])"
        text = re.sub(pattern, short_hash(key), text)
    return text


def redacted_repr(value: object) -> str:
    """`__repr__` for values with a `key` field: shows the key's short hash."""
    fields: tuple[str, ...] = tuple(getattr(type(value), "__dataclass_fields__", ()))
    shown = ((name, getattr(value, name)) for name in fields)
    parts = (
        f"key={short_hash(each)}" if name == "key" and each else f"{name}={each!r}"
        for name, each in shown
    )
    return f"{type(value).__name__}({', '.join(parts)})"


# ------------------------------------------------------------ was the request sent?

_MAKING = frozenset({"connect", "_connect", "connect_tcp", "connect_unix_socket", "start_tls"})
"""Functions of these libraries that open a connection, including proxy and TLS."""
_LIBRARIES = frozenset({"urllib3", "httpcore", "httpcore2"})
_CHAIN_MAX = 20


def failed_to_connect(error: BaseException, outer: BaseException | None) -> bool:
    """Whether an error, or its cause, was raised while connecting: then nothing was sent.

    Mostly the error's class says so. This reads it from the traceback where one class means both
    (requests raises one for refused and for broken connections), and for timeouts from outside.
    `outer` is the exception the caller was already handling, which Python chains as a cause too.
    """
    return any(_is_within(each) for each in chain(error, outer))


def chain(error: BaseException, outer: BaseException | None = None) -> Iterator[BaseException]:
    """Yield an error and its causes, also those that urllib3 passes as arguments."""
    waiting: list[object] = [error]
    seen: set[int] = {id(outer)}
    while waiting and len(seen) < _CHAIN_MAX:
        each = waiting.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__, getattr(each, "reason", None), *each.args]


def _is_within(error: BaseException) -> bool:
    frames = error.__traceback__
    while frames is not None:
        frame = frames.tb_frame
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if frame.f_code.co_name in _MAKING and package in _LIBRARIES:
            return True
        frames = frames.tb_next
    return False
