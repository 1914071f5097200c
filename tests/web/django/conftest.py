"""The site, under every handler or one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.web.django.site import Site

HANDLERS = ("wsgi", "asgi", "asgi, async views", "wsgi, async views")


@pytest.fixture(params=HANDLERS)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    with Site(request.param) as site:
        yield site


@pytest.fixture
def wsgi() -> Iterator[Site]:
    with Site("wsgi") as site:
        yield site
