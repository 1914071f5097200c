"""Find SQLAlchemy's engines and sessions, and prepare sessions for an atomic transaction.

FastAPI's dependencies run before the key is claimed, so a session made by one of them cannot be the
atomic one yet. It is offered instead: the attempt's transaction then begins on it, and everyone who
has it works inside.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from oncekey._engine import attempt as attempts
from oncekey.atomic._connections import must_not_be_url
from oncekey.atomic._loans import revoke, twin_of
from oncekey.errors import Misuse

_ENGINES = {"postgresql": "postgres", "mariadb": "mysql"}


def engine_of(source: Any, takes: str, *, awaited: bool) -> Any:
    """Return the engine of a source. Raises `Misuse` if it has none, or one of the other kind."""
    must_not_be_url(source, takes)
    if hasattr(source, "session_factory") and hasattr(source, "registry"):
        engine = _engine_of_scoped(source)
    elif hasattr(source, "kw"):
        engine = source.kw.get("bind")
    else:
        engine = source
    if engine is None:
        raise Misuse("the session factory has no engine: use sessionmaker(engine)")
    opens = hasattr(engine, "dialect") and hasattr(engine, "dispose")
    if not opens or hasattr(engine, "sync_engine") is not awaited:
        raise Misuse(f"{takes}, not a {type(engine).__name__}")
    return engine


def _engine_of_scoped(source: Any) -> Any:
    try:
        return source.get_bind()
    except RuntimeError as error:
        raise Misuse(
            "the session belongs to a Flask application: make SQLAlchemy(db.session) after "
            "db.init_app(app), inside `with app.app_context():`"
        ) from error
    finally:
        with contextlib.suppress(RuntimeError):
            source.remove()


def name_of(engine: Any) -> str:
    """Return the name of the store whose records can be in this database."""
    name: str = engine.dialect.name
    return _ENGINES.get(name, name)


def session_of(source: Any) -> Any:
    """Return the session of the current scope."""
    try:
        return source()
    except RuntimeError as error:
        raise Misuse(
            "db.session exists only inside a Flask request, and the middleware runs before Flask: "
            "use oncekey.web.flask.Oncekey instead"
        ) from error


def must_be_session_factory(source: Any, name: str) -> None:
    """Raise `Misuse` unless the source makes sessions."""
    if not callable(source):
        raise Misuse(
            f"{name}(…).session needs a sessionmaker: make {name}(…) of one, not an engine"
        )


def commit_earlier_work(session: Any) -> None:
    """Commit what dependencies read or wrote before the claim. Loaded objects stay loaded."""
    if hasattr(session, "expire_on_commit") and session.in_transaction():
        with _keep_loaded(session):
            session.commit()


async def commit_earlier_work_async(session: Any) -> None:
    """`commit_earlier_work` for an `AsyncSession`."""
    if hasattr(session, "sync_session") and session.in_transaction():
        with _keep_loaded(session.sync_session):
            await session.commit()


@contextlib.contextmanager
def _keep_loaded(session: Any) -> Iterator[None]:
    expires, session.expire_on_commit = session.expire_on_commit, False
    try:
        yield
    finally:
        session.expire_on_commit = expires


def end_unused(session: Any) -> None:
    """Roll back an unused transaction; loaded objects stay loaded."""
    if (transaction := session.get_transaction()) is not None:
        transaction.close()


def take_over(session: Any) -> Any:
    """Return a new object that continues a Session or Connection, and revoke the handler's.

    Otherwise a thread of the handler could begin another transaction on it while we end ours.
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


# ------------------------------------------------------------------- sessions made before the claim


class Offer:
    """A session made before the claim, and whether it was lent to a handler."""

    __slots__ = ("adapter", "is_lent", "session")

    def __init__(self, adapter: Any, session: Any) -> None:
        self.adapter = adapter
        self.session: Any = session
        self.is_lent = False
        """Then the transaction that lent it closes it."""


_offers: ContextVar[tuple[Offer, ...]] = ContextVar("oncekey_offers", default=())


@contextmanager
def offer_session(adapter: Any, session: Any) -> Iterator[Offer]:
    """Offer a session to the transaction that `adapter` may begin for this request."""
    offer = Offer(adapter, session)
    # Not reset: a framework may end a dependency in another context.
    _offers.set((offer, *(other for other in _offers.get() if other.session is not None)))
    try:
        yield offer
    finally:
        offer.session = None


def find_offer(adapter: Any) -> Offer | None:
    """Return the session this request offers, or None."""
    matching = (
        each for each in _offers.get() if each.adapter is adapter and each.session is not None
    )
    return next(matching, None)


def current_session(adapter: Any) -> Any:
    """Return what `adapter` has lent to the current attempt, or None."""
    try:
        loan = attempts.current().loan
    except Misuse:  # no attempt
        return None
    return loan.connection if loan is not None and loan.adapter is adapter else None
