"""The example with Django, served from this process, whatever else of Django is used in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import django
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.db import connections
from django.test.utils import override_settings
from django.urls import clear_url_caches

from examples.django_orders import settings as example
from oncekey.web.django import _claim as claim
from tests.acceptance.client import Client
from tests.acceptance.serve import serving, serving_wsgi

if not settings.configured:
    settings.configure()
    django.setup()


@contextmanager
def served(data: Path, charge: Callable[..., str], *, awaited: bool) -> Iterator[Client]:
    """The application, with its orders and its keys in one file below `data`."""
    with (
        configured(data / "orders.db"),
        mock.patch(f"{example.__package__}.views.charge_card", charge),
    ):
        call_command("migrate", run_syncdb=True, verbosity=0)
        call_command("oncekey_migrate", verbosity=0, stdout=mock.Mock())
        if awaited:
            with serving(ASGIHandler(), lifespan="off") as client:
                yield client
        else:
            with serving_wsgi(WSGIHandler()) as client:
                yield client


@contextmanager
def configured(file: Path) -> Iterator[None]:
    """The example's settings, with another file."""
    # A database and a secret cannot be taken back by Django's own means.
    values: dict[str, Any] = {
        name: getattr(example, name)
        for name in dir(example)
        if name.isupper() and name not in ("DATABASES", "SECRET_KEY")
    }
    values["ONCEKEY"] = {**example.ONCEKEY, "store": f"sqlite:///{file}"}
    database = {"default": {**example.DATABASES["default"], "NAME": file}}
    before = connections.settings["default"]
    connections["default"].close()
    connections.settings["default"] = connections.configure_settings(database)["default"]
    del connections["default"]
    clear_url_caches()
    try:
        with override_settings(**values):
            yield
            claim.views().close()
    finally:
        claim.views.cache_clear()
        connections["default"].close()
        connections.settings["default"] = before
        del connections["default"]
        clear_url_caches()
