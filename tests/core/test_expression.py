"""Expressions: keys made from a call's arguments, and what is refused as one."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from oncekey._core.expression import ArgumentFunction, Expression
from oncekey.errors import Misuse

ID = uuid.UUID("12345678-1234-5678-1234-567812345678")


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Order:
    id: object
    lines: tuple[str, ...] = ("tea",)


def text(source: Any, **arguments: Any) -> str:
    return Expression("key", source, arguments)(arguments)


@pytest.mark.parametrize(
    ("source", "arguments", "made"),
    [
        ("{order_id}", {"order_id": "o1"}, "o1"),
        ("{order.id}/pay", {"order": Order("o1")}, "o1/pay"),
        ("{order.lines[0]}", {"order": Order(1)}, "tea"),
        ("{args[0]}", {"args": ("first",)}, "first"),
        ("{kwargs[id]}", {"kwargs": {"id": 7}}, "7"),
        ("{a}:{b}", {"a": 0, "b": Decimal("1.50")}, "0:1.50"),
        ("{n:06d}", {"n": 42}, "000042"),
        ("{{{n}}}", {"n": 42}, "{42}"),
        ("{a} {b} {c}", {"a": ID, "b": date(2026, 1, 2), "c": Colour.RED}, f"{ID} 2026-01-02 red"),
        ("pay-{a}", {"a": "p-1"}, "pay-p-1"),
        (lambda order: order.id, {"order": Order("o1"), "other": 1}, "o1"),
        (lambda b, a: f"{a}{b}", {"a": 1, "b": 2}, "12"),
        (lambda n: n, {"n": 7}, "7"),
    ],
)
def test_a_text_is_made_from_arguments(source: Any, arguments: dict[str, Any], made: str) -> None:
    assert text(source, **arguments) == made


@pytest.mark.parametrize(
    ("source", "one", "other"),
    [
        ("{a}/{b}", ("x/y", "z"), ("x", "y/z")),
        ("{a}{b}", ("1", "23"), ("12", "3")),
        ("{a}{b}", (1, 23), (12, 3)),
        ("{a}--{b}", ("x-", "y"), ("x", "-y")),
        ("{a}/{b}", ("x", "y/z(1,1)"), ("x/y", "z(1,1)")),
        ("{a},{b}", ("x,y", "z"), ("x", "y,z(3,1)")),
    ],
)
def test_p5_where_a_part_ends_makes_another_key(source: str, one: Any, other: Any) -> None:
    assert text(source, a=one[0], b=one[1]) != text(source, a=other[0], b=other[1])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "is None"),
        ("", "is empty"),
        ("  ", "is empty"),
        (True, "is a bool"),
        (1.5, "is a float"),
        (object(), "is a object"),
        (["a"], "is a list"),
        (b"a", "is a bytes"),
    ],
)
def test_what_names_nothing_or_changes_is_refused(found: object, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        text("{order.id}/pay", order=Order(found))
    with pytest.raises(Misuse, match=says):
        text(lambda order: order.id, order=Order(found))


def test_p5_a_part_that_is_written_as_nothing_is_refused() -> None:
    with pytest.raises(Misuse, match="n is empty"):
        text("{n:%Z}", n=date(2026, 1, 2))  # it has no time zone
    with pytest.raises(Misuse, match="n cannot be written so"):
        text("{n:06d}", n="42")


@pytest.mark.parametrize(
    "source", ["{order.number}", "{order.lines[5]}", "{order.lines[x]}", "{order[id]}"]
)
def test_a_part_that_is_not_there_is_misuse(source: str) -> None:
    with pytest.raises(Misuse, match="there is no order"):
        text(source, order=Order(1))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "empty"),
        ("{", "cannot be read"),
        ("{}", "name an argument"),
        ("{0}", "name an argument"),
        ("{order!r}", "name an argument"),
        ("{order:{width}}", "name an argument"),
        ("{thing}", "wants 'thing'; the function's arguments are: order"),
        (lambda thing: thing, "wants 'thing'"),
        (lambda *args: args, "name the arguments"),
        (lambda **kwargs: kwargs, "without \\*, \\*\\* or /"),
        (dict, "lambda"),
        (17, "write a text with fields"),
        (None, "write a text with fields"),
    ],
)
def test_what_is_written_wrongly_is_told_at_once(source: Any, says: str) -> None:
    with pytest.raises(Misuse, match=says):
        Expression("key", source, {"order": None})


def test_a_constant_is_told_from_an_expression() -> None:
    assert Expression("tenant", "acme", {}).constant
    assert Expression("tenant", "a{{c", {}).constant
    assert not Expression("tenant", "{a}", {"a": 1}).constant
    assert not Expression("tenant", lambda: "acme", {}).constant


def test_a_function_takes_what_it_names() -> None:
    function: Callable[..., Any] = lambda b: [b]  # noqa: E731
    assert ArgumentFunction("fingerprint", function, {"a": 1, "b": 2})({"a": 1, "b": 2}) == [2]
