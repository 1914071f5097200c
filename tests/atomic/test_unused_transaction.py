"""An atomic handler that does not use its transaction is reported once."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey import events
from tests.atomic.shop import Opener, Shop, kinds_as_params, new_key, opener

__all__ = ["opener"]

pytestmark = pytest.mark.anyio

FEW = kinds_as_params(
    "asyncpg", "AsyncSession on asyncpg", "Session", "Django", "sqlite3", "PyMySQL"
)


def heard(shop: Shop) -> list[Any]:
    told = list[Any]()
    shop.app.edge.guard.reports.hooks = events.Hooks([told.append])
    return told


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    """By the logger that it names, which can be silenced alone."""
    said = "POST /orders is Policy(atomic=True), but its handler answered 201"
    told = [each.getMessage() for each in caplog.records if each.name == "oncekey.atomic"]
    return sum(each.startswith(said) and "oncekey.atomic" in each for each in told)


@pytest.mark.parametrize("kind", FEW)
async def test_a_handler_that_leaves_its_transaction_alone_is_told_of_once(
    opener: Opener, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opener(kind) as shop:
        told, status = heard(shop), ["422 Refused"]
        if shop.edge == "asgi":

            async def answer(send: Any) -> None:
                number = int(status[0][:3])
                await send({"type": "http.response.start", "status": number, "headers": []})
                await send({"type": "http.response.body", "body": b"elsewhere"})

            shop.instead = answer
        else:

            def answer_blocking(start_response: Any) -> Any:
                start_response(status[0], [])
                return [b"elsewhere"]

            shop.instead = answer_blocking
        assert (await shop.order(new_key())).status == 422  # it had nothing to write
        assert warnings(caplog) == 0
        status[0] = "201 Created"
        for _ in range(2):
            assert (await shop.order(new_key())).status == 201
        assert warnings(caplog) == 1
        found = [each for each in told if isinstance(each, events.NotAtomic)]
        assert [(each.operation, each.status) for each in found] == [("POST /orders", 201)]


@pytest.mark.parametrize("kind", FEW)
async def test_a_handler_that_uses_it_is_not(
    opener: Opener, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opener(kind) as shop:
        told = heard(shop)
        assert (await shop.order(new_key())).status == 201
        assert warnings(caplog) == 0
        assert not any(isinstance(each, events.NotAtomic) for each in told)
