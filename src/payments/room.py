"""Room: requests that change something leave some threads to those that only look.

While the card network does not answer, each charge holds its thread for many seconds. Without this
they would soon hold all of them, and nobody could even see what became of their charges.
"""

from __future__ import annotations

import asyncio

from payments.gate import App, Receive, Scope, Send
from payments.limits import READS

FOR_LOOKING = 0.25
"""The part of the threads that only those who look may use."""


class Room:
    """Lets at most the other threads' worth of changes run at once; the rest wait their turn,
    without a thread.
    """

    def __init__(self, app: App, threads_max: int) -> None:
        self._app = app
        self._places = asyncio.Semaphore(max(1, int(threads_max * (1 - FOR_LOOKING))))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READS:
            await self._app(scope, receive, send)
        else:
            async with self._places:
                await self._app(scope, receive, send)
