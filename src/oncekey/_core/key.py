"""The key that a client sends: parse it, refuse it, and derive ids from it.

A key is 1 to 255 visible ASCII characters, case-sensitive. In the header it may be bare
(`order-17`, what nearly all clients send) or a structured-field string (`"order-17"`, what the IETF
draft asks for); both are the same key. Anything else is refused, not repaired: a key that two
servers read differently protects nothing.

Reasons never repeat what was sent, so they may be logged and sent as they are.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from oncekey._core.framing import as_bytes, frame

CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class BadKey:
    """Why a key is refused: a sentence that tells the client what to do."""

    reason: str


def parse(lines: Sequence[bytes], *, chars_min: int = 1) -> str | BadKey:
    """Parse the key from the values of its header lines; there must be exactly one."""
    if len(lines) != 1:
        return BadKey(f"The request has {len(lines)} key header lines. Send exactly one.")
    if _PLAIN.fullmatch(lines[0]):
        text = lines[0].decode("ascii")
        if len(text) >= chars_min and text.lower() not in _PLACEHOLDERS:
            return text
    value = lines[0].strip(b" \t")  # some servers leave these on
    if _BARE.fullmatch(value):
        return check(value.decode("ascii"), chars_min=chars_min)
    if quoted := _QUOTED.fullmatch(value):
        text = _ESCAPED.sub(rb"\1", quoted[1]).decode("latin-1")
        return check(text, chars_min=chars_min)
    return _neither_bare_nor_quoted(value)


def check(text: str, *, chars_min: int = 1) -> str | BadKey:
    """Return the key if it is valid, wherever it was sent."""
    if len(text) > CHARS_MAX:
        return BadKey(f"The key is longer than {CHARS_MAX} characters. Send a shorter one.")
    if mistake := _PLACEHOLDERS.get(text.lower()):
        return BadKey(f"The key is a placeholder: {mistake}. {_ADVICE}")
    if not text:
        return BadKey(f"The key is empty. {_ADVICE}")
    if not _VISIBLE.fullmatch(text):
        return BadKey(_invisible(text))
    if _TEMPLATE.search(text):
        return BadKey(f"The key is a template whose variable was never filled in. {_ADVICE}")
    if len(text) < chars_min:
        return BadKey(f"The key is shorter than {chars_min} characters. Send a longer one.")
    return text


def derive(text: str) -> str | BadKey:
    """Make a key from any name: the text itself if it is a valid key, otherwise its digest.

    For names from this service or from others, such as the ids of messages, which may be longer
    than a key and contain anything. Empty names and placeholders are refused as ever.
    """
    unfit = len(text) > CHARS_MAX or not _VISIBLE.fullmatch(text)
    if (unfit and text.strip()) or text.startswith(_DERIVED):  # nobody may choose a digest
        return _DERIVED + hashlib.sha256(frame((b"oncekey/key/1", as_bytes(text)))).hexdigest()
    return check(text)


def record_id(tenant: str, operation: str | None, key: str) -> bytes:
    """Return what stores index: 32 bytes. `operation` is None if the key's scope is the tenant."""
    # What `frame` and `as_bytes` would write; inlined, because every request needs it.
    account = tenant.encode("utf-8", "surrogatepass")
    text = key.encode("utf-8", "surrogatepass")
    if operation is None:
        scope = b"-"
    else:
        scoped = operation.encode("utf-8", "surrogatepass")
        scope = b"%d:%b" % (len(scoped), scoped)
    parts = b"16:oncekey/record/1%d:%b%b%d:%b" % (len(account), account, scope, len(text), text)
    return hashlib.sha256(parts).digest()


def short_hash(key: str) -> str:
    """Return what stands for a key in logs and events: 12 hexadecimal digits (P12)."""
    return hashlib.sha256(frame((b"oncekey/short/1", as_bytes(key)))).hexdigest()[:12]


def describe_call(operation: str, key: str) -> str:
    """Name a call in an error message: `shop.pay key=0c8698d5d0dc`."""
    return f"{operation} key={short_hash(key)}"


# ------------------------------------------------------------------------------ syntax

_DERIVED = "sha256:"
_VISIBLE = re.compile(r"[!-~]+")
# A bare key has no comma, because servers join repeated header lines with one, and no double quote,
# because half-quoted keys are mistakes. A quoted key may have both.
_PLAIN = re.compile(rb"[0-9A-Za-z_.:-]{1,255}")  # what nearly all clients send
_BARE = re.compile(rb"[!#-+\--~]+")
_QUOTED = re.compile(rb'"((?:[^"\\]|\\["\\])*)"')
_ESCAPED = re.compile(rb"\\(.)")


def _neither_bare_nor_quoted(value: bytes) -> str | BadKey:
    complete = _QUOTED.match(value)
    rest = value[complete.end() :].lstrip(b" \t") if complete else b""
    if rest.startswith(b";"):
        return BadKey("The key has parameters after it. Send the quoted key alone.")
    if rest.startswith(b",") or (b"," in value and not value.startswith(b'"')):
        return BadKey(
            "The key header holds a comma, as when several keys are joined. Send exactly one key; "
            "if the comma belongs to it, put the key in double quotes."
        )
    if b'"' in value:
        return BadKey(
            "The key is not quoted correctly. Send it without quotes, or put all of it in double "
            'quotes and write \\" and \\\\ for a quote and a backslash within.'
        )
    return check(value.decode("latin-1"))  # empty, or not all visible: refused there


def _invisible(text: str) -> str:
    if any(char < " " or char == "\x7f" for char in text):
        return f"The key holds control characters. {_ADVICE}"
    if not text.isascii():
        return f"The key holds characters that are not ASCII. {_ADVICE}"
    return f"The key holds a space. {_ADVICE}"


# ------------------------------------------------------------------------ placeholders
#
# Values that nobody chooses as a key but that buggy programs send, the same for every operation.
# Accepting them would answer the second operation with the first one's outcome.

_ADVICE = "Send 1 to 255 visible ASCII characters, new for each operation, such as a UUID."
_UNSET = "a variable was not set when the request was built"
_BLANK_UUID = "a UUID of only zeros or only ones was never filled in"

_PLACEHOLDERS = {
    **dict.fromkeys(("null", "(null)", "<null>", "nil", "<nil>", "none", "undefined"), _UNSET),
    **dict.fromkeys(("true", "false"), "a yes-or-no value was sent in place of a key"),
    "nan": "a calculation that gave no number was turned into text",
    "[object object]": "an object was turned into text",
    "[object promise]": "a promise was turned into text before it was awaited",
    **{
        form.format(digit * 8, digit * 4, digit * 12): _BLANK_UUID
        for digit in "0f"
        for form in ("{0}-{1}-{1}-{1}-{2}", "{{{0}-{1}-{1}-{1}-{2}}}", "{0}{1}{1}{1}{2}")
    },
}

# {{name}} anywhere; ${name}, $(command), $NAME, {name}, <name>, %s and %(name)s alone. Narrow on
# purpose: no random key of visible ASCII may match.
_TEMPLATE = re.compile(
    r"\{\{[$\w.-]+\}\}"
    r"|^(?:\$\{[\w.-]+\}|\$\([\w.-]+\)|\$[A-Z_]{2,}|\{[A-Za-z_]+\}|<[A-Za-z_-]+>|%s|%\(\w+\)s)$"
)
