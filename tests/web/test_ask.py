"""`recovery="ask"`: the application finds out what became of an attempt that died.

By a client's retry, in both kinds of application, and by the recoverer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from oncekey import current, single_tenant
from oncekey._core.answer import answer_of
from oncekey._core.policy import Learned
from oncekey._core.record import Answer
from oncekey._engine.attempt import Attempt
from oncekey._engine.recovery import Ending
from oncekey.errors import Misuse
from oncekey.web import wsgi
from tests.orphans import LEASE_S, TENANT, Service, Shop, service
from tests.web.client import Reply, ask, ask_wsgi

KINDS = ["asgi", "wsgi"]
FOUND = answer_of(201, {"charge": "ch_1"}, [(b"location", b"/charges/1"), (b"set-cookie", b"s=1")])


def asking(find_out: Callable[[Attempt], Any], kind: str, **policy: Any) -> tuple[Service, Shop]:
    """A service with an orphan, and its handler."""
    shop = Shop()
    shopping = service(shop, kind, recovery="ask", ask=find_out, **policy)
    shopping.edge.tenant = lambda request: TENANT
    shopping.abandon("k")
    return shopping, shop


async def retry(shopping: Service) -> Reply:
    """The client comes back."""
    if isinstance(shopping.middleware, wsgi.IdempotencyMiddleware):
        return ask_wsgi(shopping.middleware, "k", path="/pay")
    return await ask(shopping.middleware, "k", path="/pay")


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_is_recorded_and_sent(kind: str) -> None:
    asked: list[Any] = []

    def find_out(attempt: Attempt) -> Any:
        asked.append((attempt.key, attempt.attempt, attempt.resumed, current() is attempt))
        return FOUND

    shopping, shop = asking(find_out, kind)
    first, again = await retry(shopping), await retry(shopping)

    assert (first.status, first.json()) == (201, {"charge": "ch_1"})
    assert first.header("location") == "/charges/1"
    assert first.header("idempotency-expires") is not None
    assert again.replayed
    assert (again.status, again.body) == (first.status, first.body)
    assert again.header("set-cookie") is None
    assert asked == [("k", 2, True, True)]
    assert shop.runs == []


async def test_it_may_be_async() -> None:
    async def find_out(attempt: Attempt) -> Any:
        assert current() is attempt
        return FOUND

    shopping, shop = asking(find_out, "asgi")

    assert (await retry(shopping)).status == 201
    assert shop.runs == []


async def test_a_callable_that_gives_a_coroutine_is_awaited() -> None:
    async def find_out(attempt: Attempt) -> Any:
        return FOUND

    shopping, _ = asking(lambda attempt: find_out(attempt), "asgi")

    assert (await retry(shopping)).status == 201


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_not_done_runs_now(kind: str) -> None:
    shopping, shop = asking(lambda attempt: Learned.NOT_DONE, kind)

    assert (await retry(shopping)).json() == {"paid": True}
    assert [run["attempt"] for run in shop.runs] == [2]
    assert (await retry(shopping)).replayed


@pytest.mark.parametrize("kind", KINDS)
async def test_p1_what_was_found_out_too_late_does_not_run(kind: str) -> None:
    """The lease was over before it was known that nothing was done: another may have run it."""

    def find_out(attempt: Attempt) -> Any:
        if attempt.lapses == 1:
            shopping.clock.advance(LEASE_S)
            attempt.mark_lost()  # as the heartbeat does
        return Learned.NOT_DONE

    shopping, shop = asking(find_out, kind)

    assert (await retry(shopping)).kind == "unsettled"
    assert shop.runs == []
    assert (await retry(shopping)).json() == {"paid": True}
    assert [run["attempt"] for run in shop.runs] == [3]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_nobody_can_tell_is_unknown(kind: str) -> None:
    shopping, shop = asking(lambda attempt: Learned.UNKNOWN, kind)

    assert (await retry(shopping)).kind == "outcome-unknown"
    assert (await retry(shopping)).kind == "outcome-unknown"
    assert shop.runs == []


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_cannot_be_kept_is_none(kind: str) -> None:
    """Its record is not given back: it would run without asking again."""
    shopping, shop = asking(lambda attempt: Answer(201, cast(Any, [("location", "/1")])), kind)

    for _ in range(2):
        with pytest.raises(TypeError):
            await retry(shopping)
        assert (await retry(shopping)).kind == "in-flight"
        shopping.clock.advance(LEASE_S)
    assert shop.runs == []


@pytest.mark.parametrize("kind", KINDS)
async def test_p11_of_an_answer_that_is_too_large_the_fact_is_kept(kind: str) -> None:
    shopping, _ = asking(lambda attempt: answer_of(201, b"x" * 101), kind, answer_bytes_max=100)

    assert (await retry(shopping)).body == b"x" * 101
    assert (await retry(shopping)).kind == "answer-not-kept"


def down(attempt: Attempt) -> Any:
    raise ConnectionError("the provider does not answer")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("find_out", [down, lambda attempt: True], ids=["raises", "nonsense"])
async def test_where_nothing_is_found_out_nothing_runs(
    kind: str, find_out: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Given back, the record would run again: it is left to lapse, and worn out in the end."""
    shopping, shop = asking(find_out, kind, lapses_max=3)

    refused = await retry(shopping)
    assert (refused.status, refused.kind) == (503, "unsettled")
    assert refused.json()["retryable"]
    assert 1 <= int(refused.header("retry-after") or 0) <= LEASE_S
    assert "was not found out" in caplog.text
    assert (await retry(shopping)).kind == "in-flight"
    shopping.clock.advance(LEASE_S)
    assert (await retry(shopping)).kind == "unsettled"
    shopping.clock.advance(LEASE_S)
    assert (await retry(shopping)).kind == "outcome-unknown"
    assert shop.runs == []


@pytest.mark.parametrize("kind", KINDS)
async def test_the_recoverer_asks_too(kind: str) -> None:
    shopping, shop = asking(lambda attempt: FOUND if attempt.recovering else None, kind)

    assert await shopping.recover() == [(Ending.FINISHED, "status 201")]
    assert (await retry(shopping)).json() == {"charge": "ch_1"}
    assert shop.runs == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("find_out", "ending", "runs"),
    [
        (lambda attempt: Learned.NOT_DONE, Ending.FINISHED, 1),
        (lambda attempt: Learned.UNKNOWN, Ending.UNKNOWN, 0),
        (down, Ending.FAILED, 0),
    ],
    ids=["not done", "unknown", "raises"],
)
async def test_what_the_recoverer_makes_of_it(
    kind: str, find_out: Any, ending: Ending, runs: int
) -> None:
    shopping, shop = asking(find_out, kind)

    assert [recovered for recovered, _ in await shopping.recover()] == [ending]
    assert len(shop.runs) == runs


async def test_a_first_attempt_is_not_asked_about() -> None:
    shop = Shop()
    shopping = service(shop, recovery="ask", ask=down)
    shopping.edge.tenant = single_tenant

    assert (await retry(shopping)).status == 201
    assert len(shop.runs) == 1


async def test_an_async_function_is_refused_where_nobody_could_await_it() -> None:
    async def find_out(attempt: Attempt) -> Any:
        return FOUND

    with pytest.raises(Misuse, match="async"):
        service(Shop(), "wsgi", recovery="ask", ask=find_out)
    shopping, shop = asking(lambda attempt: find_out(attempt), "wsgi")  # found out when it runs
    assert (await retry(shopping)).kind == "unsettled"
    assert shop.runs == []
