"""Hooks: what can be told of events, and what is refused because it could not, or would tell
nobody.
"""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

import oncekey
from oncekey.client import retrying
from oncekey.errors import Misuse
from oncekey.events import Event, Hooks
from oncekey.metrics import LoggingHook


async def awaited(event: Event) -> None:
    raise AssertionError(event)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (LoggingHook(), "takes a list of functions, such as .* not a LoggingHook"),
        ("shop.hooks.tell", "takes a list of functions, such as .* not a str"),
        (None, "takes a list of functions, such as .* not a NoneType"),
        ([LoggingHook], r"LoggingHook is a class; make one, LoggingHook\(\)"),
        (["shop.hooks.tell"], "a str cannot be called"),
        ([awaited], "awaited at .* is async, and hooks are not awaited: write it with def"),
    ],
)
def test_hooks_that_would_tell_nobody_are_refused_at_the_start(given: Any, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        oncekey.Runtime("memory://", hooks=given)
    with pytest.raises(Misuse, match=said):
        retrying(httpx2.HTTPTransport(), hooks=given)


def test_any_iterable_of_functions_will_do() -> None:
    told: list[Event] = []
    event = Event("POST /orders", "f103d37a5310")
    Hooks(each for each in (told.append, told.append))(event)
    assert told == [event, event]
