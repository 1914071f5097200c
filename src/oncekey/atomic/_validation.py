"""Refuse atomic settings that cannot work at startup, with what to write instead."""

from __future__ import annotations

from collections.abc import Callable

from oncekey._core.policy import Policy
from oncekey.atomic._unit_of_work import Adapter
from oncekey.errors import Misuse
from oncekey.stores.base import Store, traits_of
from oncekey.stores.transactions import sql_transactions

UNUSED = "atomic=… is given, but no policy says Policy(atomic=True)"
LEASE_SHARE = 3
"""On SQLite leases are renewed only while no atomic handler runs: a few must fit into a lease."""


def check(
    adapter: Adapter | None,
    store: Store,
    named: Callable[[Callable[[Policy], bool]], list[str]],
) -> None:
    """Check the adapter against the store and the policies. `named` returns the routes whose policy
    meets a condition.
    """
    _must_be_adapter(adapter)
    routes = ", ".join(named(lambda policy: policy.atomic))
    if not routes:
        if adapter is not None:
            raise Misuse(UNUSED)
        return
    sql = sql_transactions(store)
    if sql is None:
        raise Misuse(
            f"Policy(atomic=True) of {routes}: records in {store.name} cannot commit with rows of "
            "a database. Name that database as store=…: postgresql://, mysql:// or sqlite://"
        )
    if adapter is None:
        raise Misuse(
            f"Policy(atomic=True) of {routes} needs to know where its rows are: add "
            f"atomic=oncekey.atomic.… to the middleware, one of {sql.adapters}"
        )
    if adapter.engine != sql.engine:
        raise Misuse(
            f"atomic={type(adapter).__name__}(…) is for {adapter.engine}, but the records are in "
            f"{store.name}: they commit together only in one database. Use {sql.adapters}, or name "
            "the other database as store=…"
        )
    if traits_of(store).one_writer:
        _check_time(named)


def _must_be_adapter(given: object) -> None:
    if given is not None and (isinstance(given, type) or not hasattr(given, "begin")):
        what = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
        raise Misuse(
            "atomic=… takes an adapter, such as oncekey.atomic.Sqlite() or Asyncpg(pool), not "
            f"{what}"
        )


def _check_time(named: Callable[[Callable[[Policy], bool]], list[str]]) -> None:
    late = named(lambda p: p.atomic and p.atomic_s_max >= p.lease_s / LEASE_SHARE)
    if late:
        raise Misuse(
            f"Policy(atomic_s_max=…) of {', '.join(late)} must be less than a third of lease_s: "
            "on SQLite an atomic handler blocks all other writers, including lease renewals"
        )


def check_loop(adapter: Adapter | None) -> None:
    """Refuse adapters that an event loop cannot use."""
    _must_be_adapter(adapter)
    if getattr(adapter, "bound_to_thread", False):
        raise Misuse(
            f"{type(adapter).__name__}'s transactions belong to a thread: use "
            "oncekey.web.wsgi.IdempotencyMiddleware, or oncekey.web.django"
        )


def check_blocking(adapter: Adapter | None, handler: str) -> None:
    """Refuse async adapters for a blocking handler, which an event loop calls in a thread: it could
    await nothing, would write no row, and still succeed.
    """
    if adapter is not None and adapter.awaited:
        raise Misuse(
            f"{handler} is written with def and runs in a thread, where it cannot await the "
            f"connections of {type(adapter).__name__}: use async def, a blocking adapter, or "
            "Policy(atomic=False) for its route"
        )


def check_thread(adapter: Adapter | None) -> None:
    """Refuse adapters that a thread without an event loop cannot use."""
    _must_be_adapter(adapter)
    if adapter is not None and adapter.awaited:
        raise Misuse(
            f"{type(adapter).__name__} needs an event loop, and a WSGI application has none: use "
            "Psycopg(pool), PyMySQL(connect), SQLAlchemy(engine), Django() or Sqlite()"
        )
