"""Arguments: equal calls have equal fingerprints, different ones have not."""

from __future__ import annotations

import enum
import hashlib
import ipaddress
import uuid
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pydantic
import pytest

from oncekey._core import arguments
from oncekey._core.fingerprint import Fingerprint
from oncekey.errors import Misuse


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Order:
    id: int
    amount: Decimal


class Model(pydantic.BaseModel):
    id: int


class Card(pydantic.BaseModel):
    """What it consists of is not what it shows."""

    model_config = pydantic.ConfigDict(extra="allow")

    number: pydantic.SecretStr
    code: str = pydantic.Field(exclude=True, default="")
    shop: pydantic.AnyUrl | None = None


def card(**given: Any) -> Card:
    return Card.model_validate(given)


class Session:
    """Nothing that could be compared."""


ID = uuid.UUID(int=7)
NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ((1, 2), [1, 2]),
        (Order(1, Decimal("1.0")), Order(1, Decimal("1.0"))),
        (Model(id=1), Model(id=1)),
        ({1, 2, 3}, {3, 2, 1}),
        (bytearray(b"a"), b"a"),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (Session(), Session()),
        (uuid.UUID(int=7), ID),
        (deque([1]), deque([1])),
        (card(number="1"), card(number="1")),
    ],
)
def test_equal_calls_are_equal(one: Any, other: Any) -> None:
    assert arguments.canonical([one]) == arguments.canonical([other])


DIFFERENT: list[Any] = [
    *(None, True, False, 0, 1, 1.5, "", "1", "None", [], {}, [1], {"a": 1}),
    *(Order(1, Decimal("1.0")), Order(1, Decimal("1.00")), Order(2, Decimal("1.0"))),
    *(Model(id=1), Model(id=2), Colour.RED, Colour.BLUE, {1, 2}, {1, 3}, frozenset((1, 2))),
    *(b"a", b"b", "61", ID, str(ID), NOW, str(NOW), Decimal(1), Path("a"), "a", Session(), Order),
    *(Fraction(1, 2), Fraction(1, 3), 1j, 2j, deque([1]), deque([2]), range(10**12), range(2)),
    *(ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("10.0.0.2")),
    *(SimpleNamespace(a=1), SimpleNamespace(a=2)),
    *(card(number="1"), card(number="2"), card(number="1", code="9"), card(number="1", x=1)),
    *(card(number="1", shop="http://a.example"), card(number="1", shop="http://b.example")),
]


def test_p5_different_calls_are_different() -> None:
    seen = [arguments.canonical([one]) for one in DIFFERENT]
    assert len(set(seen)) == len(DIFFERENT)


def test_what_cannot_be_compared_is_misuse() -> None:
    itself: list[Any] = []
    itself.append(itself)
    for argument in (itself, {(1, 2): 3}, {1: 2, "a": 3}):
        with pytest.raises(Misuse, match="cannot be compared"):
            arguments.canonical(argument)


def test_calls_and_payloads_are_never_the_same() -> None:
    assert arguments.fingerprint(b"1") != arguments.payload(b"1")
    assert arguments.payload(b"1") == arguments.payload(b"1")
    assert arguments.payload(b"1") != arguments.payload(b"2")


def test_version_1_stays_what_it_is() -> None:
    """What another release kept is compared with these: other bytes would refuse every retry."""
    given = [("a", 1.5, Decimal("1.50"), {"b": None}), {}]
    text = b'[["a",1.5,["decimal.Decimal","1.50"],{"b":null}],{}]'
    assert arguments.canonical(given) == text
    framed = b"19:oncekey/arguments/1%d:%b" % (len(text), text)
    assert arguments.fingerprint(text) == Fingerprint(1, hashlib.sha256(framed).digest())
    framed = b"17:oncekey/payload/14:body"
    assert arguments.payload(b"body") == Fingerprint(1, hashlib.sha256(framed).digest())
