"""What becomes of a request whose handler broke, under each recovery and in every form."""

from __future__ import annotations

from typing import Any

import pytest

import oncekey
from oncekey import Policy, Verdict, keep_errors_too, keep_success
from oncekey._core.record import State
from tests.web.shops import FORMS, Shop, shop_of

every_form = pytest.mark.parametrize("form", FORMS)
IN_THREADS = ("wsgi", "flask middleware", "flask extension", "django wsgi", "django asgi")
"""Where a handler may block, as the work here does."""
SEE_EXCEPTIONS = tuple(form for form in FORMS if form != "flask middleware")
"""Around Flask nobody sees an exception: it makes an answer of it."""


class Declined(Exception):
    """The bank said no: nothing happened."""


def times_out() -> Any:
    raise TimeoutError("the bank did not answer")


def breaks(error: BaseException) -> Any:
    def work() -> Any:
        raise error

    return work


def said(word: str, then: Any) -> Any:
    """Work that says something of its attempt, and then goes on."""

    def work() -> Any:
        getattr(oncekey.current(), word)()
        return then()

    return work


def unknown_at_once(shop: Shop) -> None:
    """Its retries, the same or changed, run nothing."""
    [record] = shop.records()
    assert record.state is State.UNKNOWN
    for _ in range(3):
        again = shop.ask("k1")
        assert (again.status, again.kind) == (409, "outcome-unknown")
    assert shop.ask("k1", {"another": 1}).kind == "mismatch"
    assert shop.runs == 1


def runs_again(shop: Shop) -> None:
    shop.work = lambda: (201, {"run": shop.runs})
    assert shop.ask("k1").json() == {"run": 2}
    assert shop.ask("k1").replayed


@every_form
def test_p6_under_block_an_exception_is_never_run_again(form: str) -> None:
    with shop_of(form, policy=Policy(recovery="block")) as shop:
        shop.work = times_out
        first = shop.ask("k1")
        assert first.status == 500
        assert first.header("idempotency-outcome") == "unknown"
        assert first.header("x-should-retry") == "false"
        assert "bank" not in first.body.decode()
        unknown_at_once(shop)


@every_form
def test_p6_under_block_a_server_error_is_never_run_again(form: str) -> None:
    with shop_of(form, policy=Policy(recovery="block")) as shop:
        shop.work = lambda: (502, {"error": "the bank hung up"})
        first = shop.ask("k1")
        assert (first.status, first.json()) == (502, {"error": "the bank hung up"})
        assert first.header("idempotency-outcome") == "unknown"
        assert first.header("x-should-retry") == "false"
        unknown_at_once(shop)


@pytest.mark.parametrize("form", ["asgi", "fastapi middleware", "fastapi route", "wsgi"])
def test_what_leaves_an_application_is_answered_in_the_shape_of_the_profile(form: str) -> None:
    with shop_of(form, policy=Policy(recovery="block"), profile="stripe") as shop:
        shop.work = times_out
        first = shop.ask("k1")
        assert first.status == 500
        assert "will not run it again" in first.json()["error"]["message"]
        assert first.header("stripe-should-retry") == "false"
        again = shop.ask("k1")
        assert (again.status, shop.runs) == (409, 1)
        assert again.json()["error"].keys() == first.json()["error"].keys()
        assert [type(error) for error in shop.raised] == [TimeoutError] * (form != "wsgi")


@every_form
@pytest.mark.parametrize("word", ["no_effect", "transient"])
@pytest.mark.parametrize("then", [times_out, lambda: (503, {})])
def test_a_handler_that_knows_better_says_so(form: str, word: str, then: Any) -> None:
    with shop_of(form, policy=Policy(recovery="block")) as shop:
        shop.work = said(word, then)
        first = shop.ask("k1")
        assert first.status in (500, 503)
        assert first.header("idempotency-outcome") is None
        runs_again(shop)


@every_form
@pytest.mark.parametrize("recovery", ["rerun", "resume", "block"])
def test_any_handler_can_say_that_nobody_knows(form: str, recovery: Any) -> None:
    with shop_of(form, policy=Policy(recovery=recovery)) as shop:
        shop.work = said("unknown", lambda: (202, {"taken": "perhaps"}))
        first = shop.ask("k1")
        assert (first.status, first.json()) == (202, {"taken": "perhaps"})
        assert first.header("idempotency-outcome") == "unknown"
        unknown_at_once(shop)


@every_form
def test_so_can_a_policy(form: str) -> None:
    def keep(status: int) -> Verdict:
        return Verdict.UNKNOWN if status == 504 else Verdict.KEEP

    with shop_of(form, policy=Policy(keep=keep)) as shop:
        shop.work = lambda: (504, {})
        assert shop.ask("k1").header("idempotency-outcome") == "unknown"
        unknown_at_once(shop)


@pytest.mark.parametrize("form", SEE_EXCEPTIONS)
def test_an_exception_that_proves_that_nothing_happened_releases(form: str) -> None:
    with shop_of(form, policy=Policy(recovery="block", no_effect_on=(Declined,))) as shop:
        shop.work = breaks(Declined())
        assert shop.ask("k1").header("idempotency-outcome") is None
        [record] = shop.records()
        assert (record.state, record.no_effect) == (State.RELEASED, True)
        runs_again(shop)


@every_form
@pytest.mark.parametrize(
    "policy", [Policy(recovery="block", keep=keep_errors_too), Policy(recovery="block")]
)
def test_a_server_error_that_is_kept_is_the_answer(form: str, policy: Policy) -> None:
    with shop_of(form, policy=policy) as shop:
        shop.work = lambda: (500, {"final": True})
        if policy.keep is not keep_errors_too:
            shop.work = said("final", shop.work)
        first, again = shop.ask("k1"), shop.ask("k1")
        assert first.header("idempotency-outcome") is None
        assert (again.status, again.replayed, shop.runs) == (500, True, 1)


@every_form
def test_under_block_too_what_the_application_refused_may_be_tried_again(form: str) -> None:
    with shop_of(form, policy=Policy(recovery="block")) as shop:
        shop.work = lambda: (429, {})
        assert shop.ask("k1").status == 429
        runs_again(shop)


@every_form
def test_so_may_a_failure_below_500(form: str) -> None:
    with shop_of(form, policy=Policy(recovery="block", keep=keep_success)) as shop:
        shop.work = lambda: (402, {})
        assert shop.ask("k1").status == 402
        runs_again(shop)


@every_form
@pytest.mark.parametrize("recovery", ["rerun", "resume"])
@pytest.mark.parametrize("broken", [times_out, lambda: (503, {})])
def test_elsewhere_what_broke_runs_again(form: str, recovery: Any, broken: Any) -> None:
    with shop_of(form, policy=Policy(recovery=recovery)) as shop:
        shop.work = broken
        assert shop.ask("k1").header("idempotency-outcome") is None
        runs_again(shop)


@every_form
@pytest.mark.parametrize("broken", [times_out, lambda: (503, {}), said("unknown", times_out)])
def test_p6_under_ask_the_next_retry_asks_at_once(form: str, broken: Any) -> None:
    asked = []

    def find_out(attempt: oncekey.Attempt) -> oncekey.Answer:
        asked.append(attempt.lapses)
        return oncekey.answer(201, {"found": "charge_1"})

    policy = Policy(recovery="ask", ask=find_out, lease_s=1000)
    with shop_of(form, policy=policy) as shop:
        shop.work = broken
        assert shop.ask("k1").header("idempotency-outcome") is None
        again = shop.ask("k1")
        assert (again.status, again.json(), shop.runs) == (201, {"found": "charge_1"}, 1)
        assert asked == [1]
        assert shop.ask("k1").replayed


@every_form
def test_p6_under_ask_it_is_not_asked_for_ever(form: str) -> None:
    def cannot_say(attempt: oncekey.Attempt) -> oncekey.Learned:
        return oncekey.Learned.NOT_DONE

    policy = Policy(recovery="ask", ask=cannot_say, lease_s=1000, lapses_max=3)
    with shop_of(form, policy=policy) as shop:
        shop.work = times_out
        for _ in range(3):
            assert shop.ask("k1").status == 500
        assert shop.ask("k1").kind == "outcome-unknown"
        assert shop.runs == 3


@pytest.mark.parametrize("form", IN_THREADS)
@pytest.mark.parametrize("recovery", ["rerun", "resume", "block"])
def test_a_step_that_must_not_be_repeated_and_raised_is_unknown(form: str, recovery: Any) -> None:
    with shop_of(form, policy=Policy(recovery=recovery)) as shop:

        def charge() -> Any:
            oncekey.current().step_sync("charge", times_out, at_most_once=True)

        shop.work = charge
        assert shop.ask("k1").header("idempotency-outcome") == "unknown"
        unknown_at_once(shop)


@pytest.mark.parametrize("form", IN_THREADS)
def test_unless_its_handler_knows_the_answer(form: str) -> None:
    with shop_of(form) as shop:

        def charge() -> Any:
            with pytest.raises(Declined):
                oncekey.current().step_sync("charge", breaks(Declined()), at_most_once=True)
            return 402, {"declined": True}

        shop.work = charge
        assert shop.ask("k1").status == 402
        assert shop.ask("k1").replayed


@pytest.mark.parametrize("form", SEE_EXCEPTIONS)
def test_final_is_not_an_answer_where_an_exception_follows(form: str) -> None:
    with shop_of(form, policy=Policy(recovery="block")) as shop:
        shop.work = said("final", times_out)
        assert shop.ask("k1").header("idempotency-outcome") == "unknown"
        unknown_at_once(shop)
