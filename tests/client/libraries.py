"""Every library that the transport supports, as one function that sends."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncekey.client import Retries, retrying
from tests.client.scripted_server import ScriptedServer, scripted_server

LIBRARIES = ("httpx", "httpx2", "requests", "async httpx", "async httpx2")
QUICK = Retries(backoff_s=0.001, backoff_s_max=0.002)
Send = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as served:
        yield served


@contextmanager
def sender(library: str, **options: Any) -> Iterator[Send]:
    options = {"retries": QUICK, **options}
    module = importlib.import_module(library.removeprefix("async "))
    if library == "requests":
        with module.Session() as session:
            for scheme in ("http://", "https://"):
                session.mount(scheme, retrying(module.adapters.HTTPAdapter(), **options))
            yield session.request
    elif library.startswith("async"):
        transport = retrying(module.AsyncHTTPTransport(), **options)

        async def send(method: str, url: str, **more: Any) -> Any:
            async with module.AsyncClient(transport=transport, follow_redirects=True) as client:
                return await client.request(method, url, **more)

        yield lambda method, url, **more: asyncio.run(send(method, url, **more))
    else:
        transport = retrying(module.HTTPTransport(), **options)
        with module.Client(transport=transport, follow_redirects=True) as client:
            yield client.request


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)
