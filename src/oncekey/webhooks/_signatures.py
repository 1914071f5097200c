"""Sign and verify webhooks: sent by someone who knows the secret, unchanged, and recently.

Two schemes, one kind of secret, `whsec_` and 24 random bytes in base64:

    Stripe      Stripe-Signature: t=1700000000,v1=<hex>
                HMAC-SHA256 of "<t>.<body>", keyed by the secret as it is written
    Standard    webhook-id, webhook-timestamp, webhook-signature: v1,<base64>
                HMAC-SHA256 of "<id>.<timestamp>.<body>", keyed by the decoded base64

A message may carry signatures for several secrets, and a receiver may hold several secrets, so a
secret can be rotated without downtime.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

from oncekey._core.values import value
from oncekey._system.chance import random_token
from oncekey.errors import Misuse

SECRET_PREFIX = "whsec_"  # noqa: S105  (the prefix of every secret, not a secret)
SECRET_BYTES = 24
TOLERANCE_S = 300.0
"""How far the timestamp may be from the receiver's clock, either way."""
HEADER_CHARS_MAX = 4_096
SIGNATURES_MAX = 20
ID_CHARS_MAX = 255

_TIMESTAMP = re.compile(r"[0-9]{1,12}")
# No full stop: "a.1" + "2" and "a" + "1.2" would sign the same bytes.
_ID = re.compile(rf"[!-\-/-~]{{1,{ID_CHARS_MAX}}}")


class Scheme(enum.Enum):
    """Which headers carry the signature, and what is signed."""

    STRIPE = "stripe"
    STANDARD = "standard"


class Flaw(enum.Enum):
    """Why a message does not verify."""

    MISSING = "a signature header is missing"
    MALFORMED = "a signature header cannot be read"
    TOO_OLD = "it was signed too long ago"
    TOO_NEW = "it was signed in the future"
    FORGED = "no signature matches: another secret, or the message was changed on its way"


@value
class Genuine:
    """The message was signed with the secret, and recently."""

    signed_at: int
    id: str | None
    """The signed id of a Standard Webhook; Stripe's events have theirs in the body."""


class Lines(Protocol):
    """Headers of any framework; those of Flask and http.server are no Mapping."""

    def items(self) -> Iterable[tuple[str, str]]: ...


@value
class Refused:
    """The message did not verify: trust nothing in it."""

    flaw: Flaw


def new_secret() -> str:
    """Make a secret for one endpoint. Show it once, to its owner."""
    material = random_token() + random_token()
    return SECRET_PREFIX + base64.b64encode(material[:SECRET_BYTES]).decode()


def must_be_secrets(secrets: Collection[str]) -> None:
    """Raise `Misuse` unless this is a list of texts. In a single text each letter would be a
    secret that anybody can guess.
    """
    if isinstance(secrets, str) or not secrets or not all(isinstance(s, str) for s in secrets):
        raise Misuse("secrets= is a list of at least one secret, each of them a text")


def must_be_raw(body: object) -> None:
    """Raise `Misuse` unless this is bytes: a decoded or parsed body is not what was signed."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise Misuse(
            "a webhook's body must be the raw bytes: await request.body(), Flask's "
            f"request.get_data(), Django's request.body; not a {type(body).__name__}"
        )


# ------------------------------------------------------------------------------------- signing


def signed_headers(
    id: str,
    body: bytes,
    secrets: Sequence[str],
    now_wall: float,
    schemes: Sequence[Scheme] = tuple(Scheme),
) -> dict[str, str]:
    """Sign `body`: return the headers that verify by every scheme, with any of the secrets.

    >>> headers = signed_headers("evt_1", b"{}", ["whsec_" + "c2VjcmV0" * 4], 1_700_000_000.5)
    >>> sorted(headers)
    ['Stripe-Signature', 'webhook-id', 'webhook-signature', 'webhook-timestamp']
    """
    must_be_secrets(secrets)
    must_be_raw(body)
    if len(secrets) > SIGNATURES_MAX:
        raise Misuse(f"sign with 1 to {SIGNATURES_MAX} secrets, not {len(secrets)}")
    if not _ID.fullmatch(id):
        raise Misuse(f"a webhook's id must be visible ASCII without a full stop: {id[:40]!r}")
    timestamp, headers = str(int(now_wall)), {}
    if Scheme.STRIPE in schemes:
        digests = (_digest_stripe(secret, timestamp, body).hex() for secret in secrets)
        headers["Stripe-Signature"] = ",".join([f"t={timestamp}", *(f"v1={d}" for d in digests)])
    if Scheme.STANDARD in schemes:
        made = (_digest_standard(secret, id, timestamp, body) for secret in secrets)
        headers["webhook-id"] = id
        headers["webhook-timestamp"] = timestamp
        headers["webhook-signature"] = " ".join(
            f"v1,{base64.b64encode(digest).decode()}" for digest in made
        )
    return headers


def _digest_stripe(secret: str, timestamp: str, body: bytes) -> bytes:
    if not secret:
        raise Misuse("a webhook secret is empty")
    return hmac.digest(secret.encode(), b"%b.%b" % (timestamp.encode(), body), hashlib.sha256)


def _digest_standard(secret: str, id: str, timestamp: str, body: bytes) -> bytes:
    content = b"%b.%b.%b" % (id.encode(), timestamp.encode(), body)
    return hmac.digest(_material(secret), content, hashlib.sha256)


def _material(secret: str) -> bytes:
    """Decode a secret's base64; real-world secrets often lack the padding."""
    text = secret.removeprefix(SECRET_PREFIX).rstrip("=")
    try:
        material = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        material = b""
    if not material:
        raise Misuse(
            "a Standard Webhooks secret is `whsec_` and base64: new_secret() makes one. Secrets "
            "made by Stripe are different: verify with scheme=Scheme.STRIPE"
        )
    return material


# ----------------------------------------------------------------------------------- verifying


def verify(
    headers: Lines,
    body: bytes,
    secrets: Sequence[str],
    now_wall: float,
    *,
    scheme: Scheme = Scheme.STANDARD,
    tolerance_s: float = TOLERANCE_S,
) -> Genuine | Refused:
    """Verify that `body`, the raw bytes, was signed with one of the secrets, and recently.

    Only one scheme: if a receiver took either, an attacker who replays a message could choose
    which id it has.
    """
    must_be_secrets(secrets)
    must_be_raw(body)
    found = _stripe(headers) if scheme is Scheme.STRIPE else _standard(headers)
    if isinstance(found, Flaw):
        return Refused(found)
    expected = [
        _digest_stripe(secret, found.timestamp, body)
        if found.id is None
        else _digest_standard(secret, found.id, found.timestamp, body)
        for secret in secrets
    ]
    # Compare every pair, so that timing does not tell which secret matched.
    matches = [hmac.compare_digest(own, sent) for own in expected for sent in found.digests]
    if not any(matches):
        return Refused(Flaw.FORGED)
    signed_at = int(found.timestamp)
    if signed_at < now_wall - tolerance_s:
        return Refused(Flaw.TOO_OLD)
    if signed_at > now_wall + tolerance_s:
        return Refused(Flaw.TOO_NEW)
    return Genuine(signed_at, found.id)


@value
class _Signed:
    """The signature headers, parsed but not verified."""

    id: str | None
    timestamp: str
    digests: tuple[bytes, ...]


def _stripe(headers: Lines) -> _Signed | Flaw:
    line = _single(headers, "stripe-signature")
    if isinstance(line, Flaw):
        return line
    parts = [part.strip().partition("=") for part in line.split(",")]
    timestamps = [text for name, _, text in parts if name == "t"]
    digests = list(_decode_each((text for name, _, text in parts if name == "v1"), bytes.fromhex))
    if len(timestamps) != 1 or not _TIMESTAMP.fullmatch(timestamps[0]) or not digests:
        return Flaw.MALFORMED
    return _Signed(None, timestamps[0], tuple(digests[:SIGNATURES_MAX]))


def _standard(headers: Lines) -> _Signed | Flaw:
    lines = []
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        line = _single(headers, name)
        if isinstance(line, Flaw):
            return line
        lines.append(line)
    id, timestamp, signatures = lines
    parts = [part.partition(",") for part in signatures.split(" ")]
    digests = list(_decode_each((text for name, _, text in parts if name == "v1"), _base64))
    if not _ID.fullmatch(id) or not _TIMESTAMP.fullmatch(timestamp) or not digests:
        return Flaw.MALFORMED
    return _Signed(id, timestamp, tuple(digests[:SIGNATURES_MAX]))


def _single(headers: Lines, wanted: str) -> str | Flaw:
    """Return the only header of this name. Of two, other code might read the other one."""
    found = [text for name, text in headers.items() if name.lower() == wanted]
    if not found or not found[0]:
        return Flaw.MISSING
    if len(found) > 1 or len(found[0]) > HEADER_CHARS_MAX:
        return Flaw.MALFORMED
    return found[0]


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _decode_each(texts: Iterator[str], decode: Callable[[str], bytes]) -> Iterator[bytes]:
    """Yield what can be decoded: a signature of a newer kind must not spoil the others."""
    for text in texts:
        try:
            yield decode(text)
        except ValueError:
            continue
