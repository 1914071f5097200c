"""Requests and answers of the library requests, which is not imported here."""

from __future__ import annotations

import sys
from typing import Any

from oncekey.client.attempts import Send
from oncekey.client.place import Outgoing
from oncekey.client.sender import Mark, Outcome, Plan, Sender
from oncekey.client.verdict import Broken, Reply

_MARK = "oncekey"
"""Among a request's hooks, because that is what its copy for a redirect shares with it."""


def mark_of(request: Any) -> Mark | None:
    """What an earlier request left on this one."""
    mark: Mark | None = request.hooks.get(_MARK)
    return mark


class Exchange:
    """One request and its attempts."""

    def __init__(self, request: Any, sender: Sender, stream: bool, timeout: Any) -> None:
        self._errors: Any = sys.modules["requests"].exceptions
        self._stream = stream
        self._timeout = timeout
        self._body = _body(request, sender.body_bytes_max)
        outgoing = Outgoing(request.method, request.url, request.headers, self._body)
        self.plan = sender.plan(outgoing, mark_of(request))
        if self.plan.mark is not None:
            request.hooks[_MARK] = self.plan.mark
        self.ready = self._prepared(request, self.plan)

    def _prepared(self, request: Any, plan: Plan) -> Any:
        """The request as it is sent. The caller's own stays as it is, so that whoever follows a
        redirect does not carry the key along.
        """
        ready = request.copy()
        for name, text in plan.placed.headers:
            ready.headers[name] = text
        if plan.without:
            del ready.headers[plan.without]
        if plan.placed.url is not None:
            ready.url = plan.placed.url
        body = self._body if plan.placed.body is None else plan.placed.body
        if body:
            ready.body = body
            ready.headers["Content-Length"] = str(len(body))
        return ready

    def timeout(self, question: Send) -> Any:
        """Neither connecting nor any reading may take longer than is left."""
        left_s = question.left_s
        match self._timeout:
            case None:
                return left_s
            case (connect_s, read_s):
                return tuple(left_s if s is None else min(s, left_s) for s in (connect_s, read_s))
            case int() | float():
                return min(self._timeout, left_s)
            case _:  # urllib3's own, which the caller has thought about
                return self._timeout

    def broken(self, error: Exception) -> Broken:
        """What a retry may cure; anything else is raised."""
        errors = self._errors
        passing = errors.ConnectionError, errors.Timeout, errors.ChunkedEncodingError
        if isinstance(error, passing):
            return Broken(error)
        raise error

    def reply(self, response: Any) -> Reply:
        """A whole answer; or its head, where the caller wants to read a success as a stream."""
        status = response.status_code
        if not self._stream or status >= 400:
            content: bytes = response.content
            return Reply(status, response.headers, content, response)
        return Reply(status, response.headers, b"", response)

    def told(self, response: Any, outcome: Outcome) -> Any:
        response.oncekey = outcome
        return response


def _body(request: Any, bytes_max: int) -> bytes | None:
    """The bytes that are sent, None where they are a stream. A file that is small enough is read,
    so that it can be sent again.
    """
    match request.body:
        case None:
            return b""
        case bytes() as body:
            return body
        case str() as text:
            return text.encode()
        case stream:
            length = request.headers.get("Content-Length") or ""
            if not (length.isdecimal() and int(length) <= bytes_max and hasattr(stream, "read")):
                return None
            request.body = stream.read()
            return _body(request, bytes_max)
