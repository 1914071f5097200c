"""A line: what is known about verbs when the connection fails."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.core.verbs import Find
from oncekey.errors import StoreUnavailable
from oncekey.stores.line import AsyncLine, Line
from oncekey.stores.memory import MemoryStore


class Closing(MemoryStore):
    """A store that hangs up while it is being checked."""

    def prepare(self) -> Any:
        yield from ()
        raise StoreUnavailable("hung up", sent=True)


def test_verbs_that_wait_for_a_connection_were_not_sent() -> None:
    with pytest.raises(StoreUnavailable) as failed:
        Line(Closing()).perform([Find(bytes(32))])
    assert failed.value.sent is False


@pytest.mark.anyio
async def test_verbs_that_wait_for_an_async_connection_were_not_sent() -> None:
    with pytest.raises(StoreUnavailable) as failed:
        await AsyncLine(Closing()).perform([Find(bytes(32))])
    assert failed.value.sent is False
