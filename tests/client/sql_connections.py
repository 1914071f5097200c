"""Every kind of database connection that a caller may have, each opening transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
import psycopg
import pymysql
import pytest
from django.conf import settings
from django.db import connections, transaction
from psycopg.rows import dict_row
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

if not settings.configured:
    settings.configure()
    django.setup()


Open = Callable[[], AbstractContextManager[Any]]
"""One transaction: it commits at the end of its block, and rolls back if that fails."""


def _mysql(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "password": parts.password,
        "database": parts.path.lstrip("/"),
    }


def drivers_own(connect: Callable[[], Any]) -> Open:
    @contextmanager
    def open_connection() -> Iterator[Any]:
        with closing(connect()) as connection:
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    return open_connection


def _of_sqlalchemy(url: str, kind: str) -> Open:
    engine = create_engine(url)

    @contextmanager
    def open_connection() -> Iterator[Any]:
        try:
            if kind == "connection":
                with engine.begin() as connection:
                    yield connection
            elif kind == "session":
                with Session(engine) as session, session.begin():
                    yield session
            else:
                scoped = scoped_session(sessionmaker(engine))
                with scoped.begin():
                    yield scoped
                scoped.remove()
        finally:
            engine.dispose()

    return open_connection


def _of_django(name: str, database: dict[str, Any]) -> Open:
    @contextmanager
    def open_connection() -> Iterator[Any]:
        connections.databases[name] = connections.configure_settings({"default": database})[
            "default"
        ]
        try:
            with transaction.atomic(using=name):
                yield name
        finally:
            connections[name].close()

    return open_connection


def _postgres_of_django(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


def way_of(way: str, request: pytest.FixtureRequest, path: Path) -> Open:
    database, _, kind = way.partition(" ")
    if database == "sqlite":
        match kind:
            case "sqlite3":
                return drivers_own(lambda: sqlite3.connect(path))
            case "django":
                options = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
                return _of_django("journal-sqlite", options)
            case _:
                return _of_sqlalchemy(f"sqlite:///{path}", kind)
    url: str = request.getfixturevalue(f"{database}_url")
    if database == "postgres":
        match kind:
            case "psycopg":
                return drivers_own(lambda: psycopg.connect(url))
            case "dict_row":
                return drivers_own(lambda: psycopg.connect(url, row_factory=dict_row))
            case "django":
                return _of_django("journal-postgres", _postgres_of_django(url))
            case _:
                return _of_sqlalchemy(url.replace("postgresql:", "postgresql+psycopg:"), kind)
    match kind:
        case "pymysql":
            return drivers_own(lambda: pymysql.connect(**_mysql(url)))
        case "DictCursor":
            rows = pymysql.cursors.DictCursor
            return drivers_own(lambda: pymysql.connect(**_mysql(url), cursorclass=rows))
        case _:
            parts = urlsplit(url)._replace(scheme="mysql+pymysql")
            return _of_sqlalchemy(parts.geturl(), kind)


CONNECTIONS = (
    "sqlite sqlite3",
    "sqlite connection",
    "sqlite session",
    "sqlite scoped",
    "sqlite django",
    "postgres psycopg",
    "postgres dict_row",
    "postgres connection",
    "postgres session",
    "postgres django",
    "mariadb pymysql",
    "mariadb DictCursor",
    "mariadb connection",
    "mariadb session",
)
