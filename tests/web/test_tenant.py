"""The tenant function, as it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from oncekey import Misuse
from oncekey.web.flask import Oncekey
from oncekey.web.wsgi import IdempotencyMiddleware


async def awaited(request: object) -> str:
    return "acme"


class Accounts:
    async def __call__(self, request: object) -> str:
        return "acme"


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    return []


@pytest.mark.parametrize("tenant", [awaited, Accounts()])
@pytest.mark.parametrize("take", [Oncekey, lambda **given: IdempotencyMiddleware(wsgi, **given)])
def test_what_must_be_awaited_is_refused_where_nobody_awaits(
    take: Callable[..., Any], tenant: Any
) -> None:
    with pytest.raises(Misuse, match="tenant=… is async, and a WSGI application is not"):
        take(store="memory://", tenant=tenant)
