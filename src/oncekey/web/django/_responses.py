"""Django's answers: read as far as they are kept, and made of what is kept."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.http import FileResponse, HttpResponse
from django.http.response import HttpResponseBase

from oncekey._core.record import Answer
from oncekey._engine.attempt import Passing
from oncekey._engine.keyless import Parts, parts_awaited
from oncekey.web._views import ViewCall


def _start(response: HttpResponseBase, visit: ViewCall) -> None:
    lines = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in response.items()]
    visit.capture.start(response.status_code, lines)


def served_by(response: HttpResponseBase, unprotected: Passing) -> HttpResponseBase:
    """An answer that nothing protects: what its view streams is made after it was called."""
    if response.streaming and not isinstance(response, FileResponse):
        read = parts_awaited if response.is_async else Parts
        response.streaming_content = read(response.streaming_content, unprotected)
    return response


def collect_sync(response: HttpResponseBase, visit: ViewCall) -> Any:
    """Read the answer as far as it is kept; what is left of a stream."""
    _start(response, visit)
    if not response.streaming:
        visit.capture.add(response.content, last=True)
        return None
    chunks = iter(response)
    for chunk in chunks:
        if visit.capture.add(chunk, last=False):
            return chunks
    visit.capture.add(b"", last=True)
    return chunks


async def collect(response: HttpResponseBase, visit: ViewCall) -> Any:
    """`collect_sync`, awaited."""
    if not response.streaming:
        return collect_sync(response, visit)
    if not response.is_async:
        return await sync_to_async(collect_sync)(response, visit)
    _start(response, visit)
    chunks = aiter(response)
    async for chunk in chunks:
        if visit.capture.add(chunk, last=False):
            return chunks
    visit.capture.add(b"", last=True)
    return chunks


def first(
    response: HttpResponseBase, visit: ViewCall, answer: Answer | None, rest: Any
) -> HttpResponseBase:
    """What is sent once it is recorded: the view's own answer, or the one that stands instead."""
    if answer is not None:
        instead = response_of(answer)
        instead._resource_closers.extend(response._resource_closers)
        return instead
    capture = visit.capture
    for name, value in capture.headers:
        response[name.decode("latin-1").title()] = value.decode("latin-1")
    if response.streaming:
        taken = capture.take()
        # As it was read: an async stream in a thread has become a blocking one.
        awaited = hasattr(rest, "__aiter__")
        response.streaming_content = (
            _again(taken, rest) if awaited else itertools.chain([taken], rest)
        )
    return response


async def _again(taken: bytes, rest: Any) -> AsyncIterator[bytes]:
    yield taken
    async for chunk in rest:
        yield chunk


def response_of(answer: Answer) -> HttpResponse:
    """An answer of ours as Django's. It has one line for each name: several are joined."""
    response = HttpResponse(answer.body or b"", status=answer.status)
    del response["Content-Type"]
    for name, value in answer.headers:
        text = name.decode("latin-1").title()
        line = value.decode("latin-1")
        response[text] = f"{response[text]}, {line}" if text in response else line
    return response
