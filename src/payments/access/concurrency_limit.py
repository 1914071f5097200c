"""Concurrency limit: requests that write leave some threads to requests that read.

While the card network does not answer, each charge holds its thread for many seconds. Without this
limit charges would soon hold all threads, and nobody could even look up their status.
"""

from __future__ import annotations

import asyncio

import oncekey
from payments.access.middleware import App, Receive, Scope, Send, refuse
from payments.access.rate_limits import READS

READS_SHARE = 0.25
"""The share of threads reserved for reads."""
WAIT_S_MAX = 10.0
"""How long a request waits for a slot."""


class ConcurrencyLimit:
    """Limits how many writes run at once; the others wait without a thread, for a limited time.

    A handler inside oncekey's transaction calls no network and does not wait: on SQLite it blocks
    all writers, including those that hold the slots it would wait for.
    """

    def __init__(self, app: App, threads_max: int) -> None:
        self._app = app
        self._slots = asyncio.Semaphore(max(1, int(threads_max * (1 - READS_SHARE))))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READS or _in_transaction():
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await self._slots.acquire()
        except TimeoutError:
            message = (
                "Too many requests wait for the card network. Retry with the same Idempotency-Key: "
                "what was begun is continued, not repeated."
            )
            await refuse(send, 503, message, type="api_error")
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._slots.release()


def _in_transaction() -> bool:
    attempt = oncekey.current_or_none()
    return attempt is not None and attempt.connection is not None
