"""Secrets of sealed records (encryption at rest), and the keys derived from each.

A secret is text with the entropy of a key, not a password: nothing here slows guessing down. Each
gives three keys, by HKDF-SHA256 (RFC 5869): one for what a client's key opens, one for what must be
opened without it, one that wraps the deployment's id key. Its `id` is part of everything that it
sealed, so that several can be in use at once; it does not reveal the secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from pathlib import Path

from oncekey._core.values import value
from oncekey.errors import Misuse

CHARS_MIN = 32
SECRETS_MAX = 16
ID_BYTES = 4
CLOSED = "(sealed)"
"""Replaces a key or a step's name that only the client's key can open."""
ADVICE = 'python -c "import secrets; print(secrets.token_urlsafe(32))"'


@value
class Secret:
    """The keys derived from one secret."""

    id: bytes
    content: bytes
    recovery: bytes
    wrapping: bytes

    def __repr__(self) -> str:
        return f"Secret({self.id.hex()})"  # error trackers record local variables


def secret(text: str) -> Secret:
    """Derive the keys of one secret."""
    extracted = hmac.digest(b"oncekey/secret/1", text.encode(), "sha256")

    def derive(purpose: bytes) -> bytes:
        return hmac.digest(extracted, purpose + b"\x01", "sha256")

    return Secret(
        derive(b"id")[:ID_BYTES], derive(b"content"), derive(b"recovery"), derive(b"wrapping")
    )


def read_secrets(given: str | Sequence[str]) -> tuple[Secret, ...]:
    """Read secrets, the one that seals first: a list, a text separated by commas, or `@FILE` with
    one per line. Raises `Misuse`; no message contains a part of one.
    """
    _check_texts(given)
    texts = _texts(given) if isinstance(given, str) else [text.strip() for text in given]
    if not texts or not all(texts):
        raise Misuse(
            "secrets=…: there is none, or an empty one. Is the environment variable set? Make one: "
            f"{ADVICE}"
        )
    if len(texts) > SECRETS_MAX:
        raise Misuse(
            f"secrets=…: at most {SECRETS_MAX}; drop those that sealed nothing that still exists"
        )
    if any(len(text) < CHARS_MIN for text in texts):
        raise Misuse(
            f"secrets=…: one is shorter than {CHARS_MIN} characters, so it could be guessed. Make "
            f"one: {ADVICE}"
        )
    if any("," in text for text in texts):
        raise Misuse("secrets=…: one contains a comma, which separates secrets")
    found = tuple(secret(text) for text in texts)
    if len({each.id for each in found}) < len(found):
        raise Misuse("secrets=…: one is named twice")
    return found


def _check_texts(given: object) -> None:
    for text in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(text, str):
            what = "None" if text is None else f"a {type(text).__name__}"  # it may be a secret
            raise Misuse(
                f"secrets=…: takes texts, not {what}. Is the environment variable set? Omit it if "
                "nothing is to be sealed"
            )


def _texts(given: str) -> list[str]:
    if given.startswith("@"):
        try:
            lines = Path(given[1:]).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise Misuse(f"secrets=…: {given[1:]} cannot be read: {error}") from None
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [text.strip() for text in given.split(",")] if given.strip() else []
