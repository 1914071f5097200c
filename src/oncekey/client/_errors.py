"""What a caller is told when no answer came: the library's own error, with a note.

No key is in it (P12): whoever logs an error logs its notes. A short hash stands for the key, and
`outcome_of(error)` has the key itself.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from oncekey._core.key import short_hash
from oncekey._core.reasons import GaveUp, GiveUpKind
from oncekey.client._connection_errors import chain


def note(key: str | None, attempts: int, gave_up: GaveUp | None, *, sent: bool, first: bool) -> str:
    """`first`: nothing can have been sent under this key before this call."""
    times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    why = f" Not again, because {gave_up.sentence}." if gave_up else ""
    if sent:
        how = f"in {times} it was sent, and nobody knows whether it was carried out."
    elif first:
        how = f"not sent: in {times} no connection was made, so it was not carried out."
    else:
        how = (
            f"not sent this time: in {times} no connection was made. Whether an earlier request "
            "under this key was carried out, nobody here knows."
        )
    return f"oncekey: {how}{why} {_move(key, gave_up, sent)}"


def _move(key: str | None, gave_up: GaveUp | None, sent: bool) -> str:
    if gave_up is not None and gave_up.kind is GiveUpKind.FORGOTTEN:
        return "Find out there whether it was done."
    if key is not None:
        return (
            f"To retry, send the same request with the same key (key={short_hash(key)}; "
            "oncekey.client.outcome_of(error).key is the key itself)."
        )
    if sent:
        return "It carried no key: find out whether it was done before you send it again."
    return "To retry, send it again."


def hide(error: BaseException, key: str) -> None:
    """Take a key out of what an error says: an address may hold it, or a server's own words."""
    for each in chain(error):
        shown = tuple(hidden(said, key) if isinstance(said, str) else said for said in each.args)
        if shown != each.args:
            each.args = shown


def hidden(said: str, key: str) -> str:
    """A text that holds no key, nor one as an address has it."""
    for form in {key, quote(key, safe="")}:
        alone = rf"(?<![0-9A-Za-z]){re.escape(form)}(?![0-9A-Za-z])"
        said = re.sub(alone, short_hash(key), said)
    return said


def show(value: object) -> str:
    """How a value is shown that has a key among its fields: with the key's short hash."""
    fields: tuple[str, ...] = tuple(getattr(type(value), "__dataclass_fields__", ()))
    shown = ((name, getattr(value, name)) for name in fields)
    parts = (
        f"key={short_hash(each)}" if name == "key" and each else f"{name}={each!r}"
        for name, each in shown
    )
    return f"{type(value).__name__}({', '.join(parts)})"
