"""Wrong settings, found when the application is already being started.

Starlette and FastAPI make their middleware when the first event comes, which is the server's
question whether the application can start. An exception there tells a server only that the
application does not know that question: it starts, and answers every request with 500. So the
mistake is kept, and the answer is that the start failed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from oncekey.errors import Misuse, OncekeyError
from oncekey.web._asgi_messages import Receive, Scope, Send
from oncekey.web._edge import log
from oncekey.web._settings_check import Checked

EXIT_CODE = 3
"""What uvicorn ends with when an application does not start. gunicorn gives up then, too, where it
would start a worker again after any other.
"""
ANSWER_S = 0.2
_SERVERS = ("uvicorn", "hypercorn", "granian", "gunicorn")
_BUILDS = "build_middleware_stack"
_BODY = b"Internal Server Error"


class BuiltLate(Checked):
    """The class of a middleware whose wrong settings are raised where the program makes it, and
    kept where a framework makes it while a server waits.
    """

    def __call__(cls, *args: Any, **settings: Any) -> Any:
        try:
            return super().__call__(*args, **settings)
        except Exception as error:
            if not any(frame.f_code.co_name == _BUILDS for frame in _frames()):
                raise
            return Mistaken(error)


class Mistaken:
    """Stands where the middleware would, and lets nothing pass."""

    def __init__(self, error: Exception) -> None:
        known = isinstance(error, OncekeyError)
        self._says = str(error) if known else f"{type(error).__name__}: {error}"
        if not known:  # no setting, but a defect, which its traceback helps to find
            log.error("the middleware could not be made", exc_info=error)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await fail_to_start(send, self._says)
            if server():
                return
        elif scope["type"] == "http" and "endpoint" not in scope and server():
            await self._end(send)  # unless it is mounted in another one, which works
            return
        raise Misuse(self._says)

    async def _end(self, send: Send) -> None:
        """The server did not ask at the start: its lifespan is off. Nothing here can be served."""
        log.critical("%s", self._says)
        lines = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_BODY))]
        await send({"type": "http.response.start", "status": 500, "headers": lines})
        await send({"type": "http.response.body", "body": _BODY})
        _exit_soon()


async def fail_to_start(send: Send, says: str) -> None:
    """Tell the server, which logs what is wrong and ends. Test clients go by an exception: where
    there is no `server()`, raise one afterwards, or they would wait for ever.
    """
    if server() == "hypercorn":  # which would say it at the end of forty lines of traceback
        log.critical("%s", says)
        _exit_soon()
        await asyncio.Event().wait()
    await send({"type": "lifespan.startup.failed", "message": says})


def _exit_soon() -> None:
    """From outside of any task: a server would catch or report what is raised in one of its own.
    What was sent gets out first.
    """
    asyncio.get_running_loop().call_later(ANSWER_S, sys.exit, EXIT_CODE)


def server() -> str | None:
    """The server whose process this is. None in tests, and for one that runs in a thread: only a
    process that is there to serve may be ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return None
    names = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in _frames()}
    return next((each for each in _SERVERS if each in names), None)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
