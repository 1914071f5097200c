"""Views whose rows commit in a transaction of Django's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse

import oncekey
from oncekey import Policy
from oncekey.web.django import idempotent
from tests.web.django.site import Site, database, told


def test_with_atomic_requests_what_fails_leaves_no_rows_and_no_answer(
    wsgi: Site, tmp_path: Path
) -> None:
    with database(tmp_path / "shop.db", ATOMIC_REQUESTS=True) as shop:

        def order(request: HttpRequest) -> HttpResponse:
            assert transaction.get_connection(shop).in_atomic_block
            with connections[shop].cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES ('tea')")
            if wsgi.run() == 1:
                raise ValueError("broken")
            return told({"run": wsgi.runs})

        wsgi.route("orders", order)
        assert wsgi.ask("k1").status == 500
        assert rows(shop) == 0
        assert [wsgi.ask("k1").json() for _ in range(2)] == [{"run": 2}] * 2
        assert rows(shop) == 1


def rows(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        return int(cursor.fetchone()[0])


@pytest.fixture
def shared(wsgi: Site, tmp_path: Path) -> Iterator[str]:
    """A database of Django's that is also the store."""
    file = tmp_path / "shop.db"
    wsgi.oncekey["store"] = f"sqlite:///{file}"
    with database(file) as shop:
        yield shop


def test_p2_the_answer_commits_with_the_rows_in_the_views_own_transaction(
    wsgi: Site, shared: str
) -> None:
    def order(request: HttpRequest) -> HttpResponse:
        wsgi.run()
        with transaction.atomic(using=shared):
            with connections[shared].cursor() as cursor:
                cursor.execute("INSERT INTO orders VALUES ('tea')")
            oncekey.current().complete_in_sync(connections[shared], 201, {"run": wsgi.runs})
        raise RuntimeError("after the commit")

    wsgi.route("orders", order)
    first, again = wsgi.ask("k1"), wsgi.ask("k1")
    assert (first.status, first.json()) == (201, {"run": 1}), "what was committed is what counts"
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert rows(shared) == 1


def test_atomic_mode_commits_claim_rows_and_answer_together(wsgi: Site, shared: str) -> None:
    wsgi.oncekey["atomic"] = shared

    @idempotent(Policy(atomic=True))
    def order(request: HttpRequest) -> HttpResponse:
        with connections[shared].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('tea')")
        if wsgi.run() == 1:
            raise ValueError("broken")
        return told({"run": wsgi.runs}, 201)

    wsgi.route("orders", order)
    assert wsgi.ask("k1").status == 500
    assert rows(shared) == 0
    first, again = wsgi.ask("k1"), wsgi.ask("k1")
    assert (first.status, again.body, again.replayed) == (201, first.body, True)
    assert (rows(shared), wsgi.runs) == (1, 2)


@pytest.mark.parametrize("marks", [True, False])
def test_without_a_key_rows_commit_with_the_answer_or_not_at_all(
    wsgi: Site, shared: str, marks: bool
) -> None:
    wsgi.oncekey["atomic"] = shared
    if not marks:
        wsgi.oncekey["policy"] = Policy(atomic=True)

    def order(request: HttpRequest) -> HttpResponse:
        assert oncekey.current().connection is not None
        with connections[shared].cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES ('tea')")
        if wsgi.run() == 1:
            raise ValueError("broken")
        return told({"run": wsgi.runs}, 503 if wsgi.runs == 2 else 201)

    wsgi.route("orders", idempotent(Policy(atomic=True))(order) if marks else order)
    assert [wsgi.ask(None).status for _ in range(4)] == [500, 503, 201, 201]
    assert rows(shared) == 2
