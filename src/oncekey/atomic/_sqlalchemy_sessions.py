"""Where SQLAlchemy's sessions and connections come from, and in which state they come."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from oncekey.atomic._connections import must_open
from oncekey.atomic._loans import revoke, twin_of
from oncekey.errors import Misuse

_ENGINES = {"postgresql": "postgres", "mariadb": "mysql"}


def engine_of(source: Any, takes: str, *, awaited: bool) -> Any:
    """The engine behind it. Raises `Misuse` for what is none, or of the other kind."""
    must_open(source, takes)
    if hasattr(source, "session_factory") and hasattr(source, "registry"):
        engine = _engine_of_scoped(source)
    elif hasattr(source, "kw"):
        engine = source.kw.get("bind")
    else:
        engine = source
    if engine is None:
        raise Misuse("the session factory has no engine: write sessionmaker(engine)")
    opens = hasattr(engine, "dialect") and hasattr(engine, "dispose")
    if not opens or hasattr(engine, "sync_engine") is not awaited:
        raise Misuse(f"{takes}, not a {type(engine).__name__}")
    return engine


def _engine_of_scoped(source: Any) -> Any:
    try:
        return source.get_bind()
    except RuntimeError as error:
        raise Misuse(
            "the session is one of a Flask application: make SQLAlchemy(db.session) after "
            "db.init_app(app), within `with app.app_context():`"
        ) from error
    finally:
        with contextlib.suppress(RuntimeError):
            source.remove()


def name_of(engine: Any) -> str:
    """The name of the store whose records can be in this database."""
    name: str = engine.dialect.name
    return _ENGINES.get(name, name)


def session_of(source: Any) -> Any:
    """The session of the scope that this code runs in."""
    try:
        return source()
    except RuntimeError as error:
        raise Misuse(
            "db.session belongs to a request that Flask has begun, and the middleware stands "
            "before Flask: guard by oncekey.web.flask.Oncekey instead"
        ) from error


def check_offers(source: Any, name: str) -> None:
    """Raise `Misuse` where there are no sessions to offer."""
    if not callable(source):
        raise Misuse(f"{name}(…).session gives sessions: make it of a sessionmaker, not an engine")


def commit_what_was_begun(session: Any) -> None:
    """End the transaction in which dependencies have read or written before the claim. What they
    have loaded stays loaded.
    """
    if hasattr(session, "expire_on_commit") and session.in_transaction():
        with _unexpired(session):
            session.commit()


async def commit_what_was_begun_async(session: Any) -> None:
    """The same for an `AsyncSession`."""
    if hasattr(session, "sync_session") and session.in_transaction():
        with _unexpired(session.sync_session):
            await session.commit()


@contextlib.contextmanager
def _unexpired(session: Any) -> Iterator[None]:
    expires, session.expire_on_commit = session.expire_on_commit, False
    try:
        yield
    finally:
        session.expire_on_commit = expires


def end_unused(session: Any) -> None:
    """Roll back a transaction in which the session did nothing: what it has loaded stays loaded."""
    if (transaction := session.get_transaction()) is not None:
        transaction.close()


def take_over(session: Any) -> Any:
    """Another object that goes on with a Session or Connection; what the handler has is revoked.

    A thread of the handler's could begin another transaction on it otherwise, while we end ours.
    """
    ours = twin_of(session)
    owner = "session" if hasattr(session, "identity_map") else "connection"
    for ends in (session.get_nested_transaction(), session.get_transaction()):
        while ends is not None:
            setattr(ends, owner, ours)
            ends = getattr(ends, "parent", None)
    if owner == "session":
        sys.modules["sqlalchemy.orm.session"]._sessions[session.hash_key] = ours
    revoke(session)
    return ours
