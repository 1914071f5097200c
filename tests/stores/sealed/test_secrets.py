"""Secrets: what is derived from them, by an implementation that is not ours. How they may be given
is tested where they are: `tests/stores/sealed/test_store.py`.
"""

from __future__ import annotations

from dataclasses import fields

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from oncekey.stores.sealed.secrets import ID_BYTES, Secret, secret

TEXT = "a secret of more than thirty-two characters"


@pytest.mark.parametrize("purpose", [field.name for field in fields(Secret)])
def test_keys_are_derived_by_hkdf(purpose: str) -> None:
    hkdf = HKDF(SHA256(), length=32, salt=b"oncekey/secret/1", info=purpose.encode())
    derived = hkdf.derive(TEXT.encode())
    wanted = derived[:ID_BYTES] if purpose == "id" else derived
    assert getattr(secret(TEXT), purpose) == wanted


def test_no_two_keys_are_the_same() -> None:
    one, other = secret(TEXT), secret(TEXT + ".")
    keys = [getattr(each, field.name) for each in (one, other) for field in fields(each)]
    assert len({*keys}) == len(keys) == 8
