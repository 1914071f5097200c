"""Connections of callers, known by their class: no library is imported to recognise its own."""

from __future__ import annotations

import sys
from typing import Any

from oncekey.errors import Misuse


def is_of(connection: Any, module: str, name: str) -> bool:
    """Whether it is of a class that, if nobody imported its module, nothing can be of."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(connection, getattr(imported, name, ()))


def connection_behind(given: Any) -> Any:
    """The connection that an alias or a proxy of Django's, or a session of SQLAlchemy's, stands
    for; any other as it is.
    """
    if isinstance(given, str) or is_of(given, "django.utils.connection", "ConnectionProxy"):
        return _of_django(given)
    if is_of(given, "sqlalchemy.orm", "scoped_session"):
        given = given.registry()
    return given.connection() if is_of(given, "sqlalchemy.orm", "Session") else given


def _of_django(given: Any) -> Any:
    django = sys.modules.get("django.db")
    if django is None or (isinstance(given, str) and given not in django.connections):
        # Not shown: it may be a URL, with a password.
        raise Misuse(
            "a text names one of Django's connections, and this one names none of them: hand over "
            "the connection itself, with its transaction open"
        )
    return django.connections[given if isinstance(given, str) else given._alias]
