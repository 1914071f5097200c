"""Envelopes: bytes encrypted with AES-256-GCM, each bound to its place.

    format byte | which key | id of the secret (4) | nonce (12) | ciphertext and tag (16)

The place that an envelope is bound to (`place`) is not in it: the reader says where it found the
envelope. One that was moved or changed does not open.
"""

from __future__ import annotations

import os
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from oncekey._core.values import value
from oncekey.errors import CorruptRecord
from oncekey.stores.sealed.secrets import ID_BYTES

FORMAT = b"\x01"
NONCE_BYTES = 12
_HEAD_BYTES = 2 + ID_BYTES
KEYS_REMEMBERED = 1_024


@value
class EnvelopeHead:
    """The part of an envelope that can be read without opening it."""

    opened_by: bytes
    secret_id: bytes


def new_key() -> bytes:
    return AESGCM.generate_key(256)


@lru_cache(KEYS_REMEMBERED)
def _cipher(key: bytes) -> AESGCM:
    return AESGCM(key)


def seal(key: bytes, head: EnvelopeHead, content: bytes, place: bytes) -> bytes:
    """Encrypt the content for holders of the key who find it in its place."""
    nonce, header = os.urandom(NONCE_BYTES), FORMAT + head.opened_by + head.secret_id
    return b"".join((header, nonce, _cipher(key).encrypt(nonce, content, header + place)))


def read_head(envelope: bytes) -> EnvelopeHead:
    if envelope[:1] != FORMAT or len(envelope) < _HEAD_BYTES + NONCE_BYTES:
        raise CorruptRecord(
            f"stored content begins with {envelope[:2].hex() or 'nothing'} and is not an envelope: "
            "it was written without sealing, by a newer release, or by something else"
        )
    return EnvelopeHead(envelope[1:2], envelope[2:_HEAD_BYTES])


def open_envelope(key: bytes, envelope: bytes, place: bytes) -> bytes:
    """Decrypt the content; raise `CorruptRecord` if the envelope was moved or changed."""
    read_head(envelope)
    nonce_end = _HEAD_BYTES + NONCE_BYTES
    header, nonce = envelope[:_HEAD_BYTES], envelope[_HEAD_BYTES:nonce_end]
    try:
        return _cipher(key).decrypt(nonce, envelope[nonce_end:], header + place)
    except InvalidTag:
        raise CorruptRecord(
            "a sealed record does not open: something other than oncekey has changed it, or moved "
            "it from another place"
        ) from None
