"""`complete_in`: the answer counts if and only if the caller's transaction is committed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncekey import Policy, current, single_tenant
from oncekey._core.verbs import Find
from oncekey.errors import LeaseLost, StoreUnavailable
from oncekey.events import Completed, Event
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.stores import elapse
from tests.web.client import ask_wsgi

SECRETS = [(b"Set-Cookie", b"sid=1"), (b"Authorization", b"Bearer b"), (b"X-CSRF-Token", b"c")]


class Shop:
    """Commits its rows and its answer together, then goes on as a test says."""

    def __init__(self, file: Path) -> None:
        self.store = Deaf(file)
        self.rows = sqlite3.connect(file, check_same_thread=False)
        self.rows.execute("CREATE TABLE orders (id TEXT)")
        self.events: list[Event] = []
        self.body: Any = b"made"
        self.then: Callable[[], Any] = lambda: None
        self.app = IdempotencyMiddleware(
            self.order,
            store=self.store,
            tenant=single_tenant,
            policy=Policy(answer_bytes_max=100, recovery="block"),
            hooks=[self.events.append],
        )

    def order(self, environ: Any, start_response: Any) -> list[bytes]:
        with self.rows:
            self.rows.execute("INSERT INTO orders VALUES ('o')")
            headers = [(b"location", b"/orders/1"), *SECRETS]
            current().complete_in_sync(self.rows, 201, self.body, headers)
        self.then()
        start_response("200 OK", [])
        return [b"something else"]

    def count(self) -> int:
        [count] = self.rows.execute("SELECT count(*) FROM orders").fetchone()
        return int(count)

    def completed(self) -> list[tuple[int, bool]]:
        ended = [event for event in self.events if isinstance(event, Completed)]
        return [(event.status, event.body_kept) for event in ended]


class Deaf(SqliteStore):
    """A store that can lose the answers to whoever looks."""

    deaf = False

    def perform(self, verbs: Any) -> Any:
        if self.deaf and any(isinstance(verb, Find) for verb in verbs):
            raise StoreUnavailable("no answer", sent=True)
        return (yield from super().perform(verbs))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    with closing(shop.app), closing(shop.rows):
        yield shop


def test_p12_secrets_are_sent_but_not_stored(shop: Shop) -> None:
    first, again = ask_wsgi(shop.app, "k"), ask_wsgi(shop.app, "k")

    assert (first.status, first.body, again.replayed) == (201, b"made", True)
    assert (again.status, again.body) == (201, b"made")
    assert again.header("location") == "/orders/1"
    for name, value in SECRETS:
        assert first.all(name.decode().lower()) == [value]
        assert again.all(name.decode().lower()) == []
    [kept] = shop.rows.execute("SELECT headers FROM oncekey_answers").fetchone()
    assert b"sid=1" not in kept


def test_p11_of_an_answer_that_is_too_large_the_fact_is_kept(shop: Shop) -> None:
    shop.body = b"x" * 101

    assert ask_wsgi(shop.app, "k").body == b"x" * 101
    assert ask_wsgi(shop.app, "k").kind == "answer-not-kept"
    assert shop.count() == 1
    assert shop.completed() == [(201, False)]


def test_it_is_told_as_any_other_completion(shop: Shop) -> None:
    ask_wsgi(shop.app, "k")

    assert shop.completed() == [(201, True)]


@pytest.mark.parametrize("then", ["answers", "raises"])
def test_whether_it_was_committed_may_have_to_be_asked_later(shop: Shop, then: str) -> None:
    def deafen() -> None:
        shop.store.deaf = True
        if then == "raises":
            raise ConnectionError("after the commit")

    shop.then = deafen
    refused = ask_wsgi(shop.app, "k")
    shop.store.deaf = False

    assert (refused.status, refused.kind) == (503, "store-unavailable")
    again = ask_wsgi(shop.app, "k")
    assert (again.status, again.body, again.replayed) == (201, b"made", True)
    assert shop.count() == 1


def test_p2_a_step_within_a_transaction_counts_only_for_who_owns_the_record(tmp_path: Path) -> None:
    """The first run is taken over while it waits, and learns it when it comes to write."""
    file = tmp_path / "shop.db"
    rows, runs = sqlite3.connect(file, check_same_thread=False), list[int]()
    rows.execute("CREATE TABLE orders (run INTEGER)")

    def made(run: int) -> int:
        rows.execute("INSERT INTO orders VALUES (?)", (run,))
        return run

    def order(environ: Any, start_response: Any) -> list[bytes]:
        runs.append(run := len(runs) + 1)
        if run == 1:
            elapse.sqlite(file, 30.0)
            assert ask_wsgi(app, "k1").body == b"2"
            with pytest.raises(LeaseLost), rows:
                current().step_sync("order", made, run, within=rows)
        else:
            with rows:
                assert current().step_sync("order", made, run, within=rows) == run
        start_response("201 Created", [])
        return [b"%d" % run]

    app = IdempotencyMiddleware(order, store=SqliteStore(file), tenant=single_tenant)
    with closing(rows), closing(app):
        late = ask_wsgi(app, "k1")
        assert (late.body, late.replayed) == (b"2", True)
        assert rows.execute("SELECT run FROM orders").fetchall() == [(2,)]
