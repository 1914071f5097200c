"""Intents in the browser's client: when a key is kept, when it is dropped, when it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.browser.node import Node

PAY: dict[str, Any] = {"intent": "cart-7/pay", "body": "{}"}
LOST = {"kind": "drop", "processed": True}
DONE = {"kind": "status", "status": 201}


def told(node: Node, requests: list[dict[str, Any]], **script: Any) -> Any:
    return node.ask("deliver", {"requests": requests, **script})


def keys(told: Any) -> list[str]:
    return [key for _, key, _, _ in told["attempts"]]


def test_one_key_until_the_answer_is_final(node: Node) -> None:
    seen = told(node, [PAY, PAY, {**PAY, "intent": "cart-8/pay"}], faults=[LOST, LOST, DONE, DONE])

    first, second, third, fourth = keys(seen)
    assert first == second == third != fourth
    assert [ending["status"] for ending in seen["endings"]] == [201, 201, 201]
    assert [ending["attempts"] for ending in seen["endings"]] == [3, 0, 1]
    assert seen["unsettled"] == []


def test_what_was_given_up_keeps_its_key(node: Node) -> None:
    seen = told(node, [PAY, PAY], faults=[LOST, DONE], options={"retries": {"attemptsMax": 1}})

    assert len(set(keys(seen))) == 1
    assert seen["endings"][0]["kind"] == "no-answer"
    assert "nobody knows whether it was carried out" in seen["endings"][0]["message"]
    assert "1 attempts were made" in seen["endings"][0]["message"]
    assert seen["endings"][1]["status"] == 201


@pytest.mark.parametrize("status", [401, 403, 407])
def test_who_is_not_let_in_keeps_the_key(node: Node, status: int) -> None:
    """An earlier attempt may have been carried out while the session was still good."""
    seen = told(node, [PAY, PAY], faults=[LOST, {"kind": "status", "status": status}, DONE])

    assert len(set(keys(seen))) == 1
    assert [ending["status"] for ending in seen["endings"]] == [status, 201]


@pytest.mark.parametrize("status", [400, 402, 404, 405, 409, 410, 413, 415, 419, 421, 422])
def test_a_refusal_that_is_not_stored_keeps_a_key_that_was_sent_before(
    node: Node, status: int
) -> None:
    """As of another release, or for a token that has expired: an earlier attempt, of a page before
    a reload too, may have been carried out. Where there was none, it is an answer.
    """
    away = {"kind": "status", "status": status}
    seen = told(node, [PAY, PAY, PAY], faults=[LOST, away, away, DONE])

    assert len(set(keys(seen))) == 1
    assert [ending["status"] for ending in seen["endings"]] == [status, status, 201]

    alone = told(node, [PAY, PAY], faults=[away, DONE])
    assert len(set(keys(alone))) == 2

    for headers in ({"idempotent-replayed": "true"}, {"idempotency-key": "$key"}):
        stored = told(node, [PAY, PAY], faults=[LOST, {**away, "headers": headers}, DONE])
        assert [ending["status"] for ending in stored["endings"]] == [status, status]
        assert len(stored["attempts"]) == 2


@pytest.mark.parametrize("status", [500, 503, 429, 408])
@pytest.mark.parametrize("said", ["stripe-should-retry: false", "idempotency-outcome: unknown"])
def test_what_is_not_to_be_retried_and_not_known_keeps_the_key(
    node: Node, status: int, said: str
) -> None:
    """The server says not to come back; it does not say that nothing was carried out."""
    name, _, word = said.partition(": ")
    final = {"kind": "status", "status": status, "headers": {name: word}}
    seen = told(node, [PAY, PAY], faults=[LOST, final, DONE])

    assert len(set(keys(seen))) == 1
    assert [ending["status"] for ending in seen["endings"]] == [status, 201]


def test_a_decline_that_is_not_kept_drops_the_key(node: Node) -> None:
    seen = told(node, [PAY, PAY], faults=[{"kind": "status", "status": 402}, DONE])

    assert len(set(keys(seen))) == 2


def test_a_mismatch_is_thrown_at_once_and_keeps_the_key(node: Node) -> None:
    body = '{"type": "urn:oncekey:problem:mismatch", "detail": "Other.", "fields": ["amount"]}'
    seen = told(node, [PAY], faults=[{"kind": "status", "status": 422, "body": body}])

    [ending] = seen["endings"]
    assert (ending["kind"], ending["fields"]) == ("mismatch", ["amount"])
    assert ending["message"].startswith("The server says that this key belongs to another request")
    assert [intent["key"] for intent in seen["unsettled"]] == keys(seen)


def test_an_old_intent_is_refused_with_an_explanation(node: Node) -> None:
    """Not sent: the server has forgotten its key."""
    later = {**PAY, "restS": 24 * 3600 - 100}
    seen = told(node, [PAY, later], faults=[LOST], options={"retries": {"attemptsMax": 1}})

    assert len(seen["attempts"]) == 1
    assert seen["endings"][1]["kind"] == "too-old"
    assert "could do it twice" in seen["endings"][1]["message"]


def test_the_server_says_how_long_it_remembers(node: Node) -> None:
    # Virtual time begins at 1,000,000 s: this is 1,000 s later.
    expires = {"idempotency-expires": "Mon, 12 Jan 1970 14:03:20 GMT"}
    answer = {"kind": "status", "status": 201, "headers": expires}
    requests = [{**PAY, "intent": "another"}, PAY, {**PAY, "restS": 899}, {**PAY, "restS": 2}]
    seen = told(
        node, requests, faults=[answer, LOST, LOST], options={"retries": {"attemptsMax": 1}}
    )

    kinds = [ending.get("kind") for ending in seen["endings"]]
    assert kinds == [None, "no-answer", "no-answer", "too-old"]


def test_of_what_the_routes_of_a_server_say_the_shortest_counts(node: Node) -> None:
    """The one for 1,000 s, the other for 100,000 s: what the first has forgotten is not sent."""
    dates = ("Mon, 12 Jan 1970 14:03:20 GMT", "Tue, 13 Jan 1970 17:33:20 GMT")
    answers = [
        {"kind": "status", "status": 201, "headers": {"idempotency-expires": date}}
        for date in dates
    ]
    requests = [{**PAY, "intent": "a"}, {**PAY, "intent": "b"}, PAY, {**PAY, "restS": 901}]
    seen = told(node, requests, faults=[*answers, LOST], options={"retries": {"attemptsMax": 1}})

    kinds = [ending.get("kind") for ending in seen["endings"]]
    assert kinds == [None, None, "no-answer", "too-old"]


def test_how_long_it_remembers_is_read_by_the_server_s_own_clock(node: Node) -> None:
    """That clock is an hour ahead: by ours, the key would count an hour too long."""
    headers = {
        "date": "Mon, 12 Jan 1970 14:46:40 GMT",
        "idempotency-expires": "Mon, 12 Jan 1970 15:03:20 GMT",
    }
    answer = {"kind": "status", "status": 201, "headers": headers}
    requests = [{**PAY, "intent": "another"}, PAY, {**PAY, "restS": 899}, {**PAY, "restS": 2}]
    seen = told(
        node, requests, faults=[answer, LOST, LOST], options={"retries": {"attemptsMax": 1}}
    )

    kinds = [ending.get("kind") for ending in seen["endings"]]
    assert kinds == [None, "no-answer", "no-answer", "too-old"]


def test_a_computer_that_slept_does_not_retry_what_is_forgotten(node: Node) -> None:
    """The budget's clock stood still meanwhile."""
    asked = {"kind": "status", "status": 503, "headers": {"retry-after": "60"}}
    seen = told(node, [PAY], faults=[asked], options={"retentionS": 50})

    assert len(seen["attempts"]) == 1
    assert "forgotten" in seen["endings"][0]["gaveUp"]


def test_nobody_is_told_to_send_again_what_is_forgotten(node: Node) -> None:
    """It could be done twice."""
    seen = told(node, [{"key": "mine", "body": "{}"}], faults=[LOST], options={"retentionS": 0.1})

    [ending] = seen["endings"]
    assert (ending["kind"], ending["attempts"]) == ("no-answer", 1)
    assert "To retry" not in ending["message"]
    assert ending["message"].endswith("Check at the server whether it was carried out.")


def test_names_are_intents_and_no_name_is_a_new_one(node: Node) -> None:
    seen = told(node, [{"body": "{}"}, {"body": "{}"}, {"body": "{}", "key": "mine"}])

    first, second, third = keys(seen)
    assert first != second
    assert third == "mine"
    assert seen["unsettled"] == []


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"intent": "a", "key": "k"}, "not both"),
        ({"headers": {"Idempotency-Key": "k"}, "intent": "a"}, "not both"),
        ({"intent": ""}, "1 to 512"),
        ({"intent": "a", "note": "x" * 20_000}, "at most 16384"),
        ({"key": "with space"}, "visible ASCII"),
    ],
)
def test_misuse_is_refused_before_anything_is_sent(
    node: Node, request_: dict[str, Any], says: str
) -> None:
    seen = told(node, [request_])

    assert says in seen["endings"][0]["message"]
    assert seen["attempts"] == []


def test_reading_is_sent_as_it_is(node: Node) -> None:
    seen = told(node, [{"method": "GET"}], faults=[{"kind": "status", "status": 503}])

    assert seen["attempts"] == [[0, None, "", "GET"]]
    assert seen["endings"][0]["status"] == 503


def test_a_method_in_small_letters_has_a_key(node: Node) -> None:
    """Browsers write the others in capitals; servers may do so with this one."""
    seen = told(node, [{**PAY, "method": "patch"}, {**PAY, "method": "patch"}])

    assert [attempt[3] for attempt in seen["attempts"]] == ["patch"]
    assert keys(seen)[0] is not None


def test_the_note_and_the_settling_are_the_caller_s(node: Node) -> None:
    seen = told(node, [{**PAY, "note": "100 EUR", "settle": False}, {**PAY, "settle": False}])

    assert len(set(keys(seen))) == 1
    assert [intent["note"] for intent in seen["unsettled"]] == ["100 EUR"]


def test_a_key_can_be_had_before_it_is_sent(node: Node) -> None:
    seen = told(node, [{"beginning": "cart-7/pay"}, {"beginning": "cart-7/pay"}, PAY])

    assert seen["endings"][0] == seen["endings"][1] == keys(seen)[0]
    assert seen["unsettled"] == []


def test_what_another_tab_began_anew_is_not_settled(node: Node) -> None:
    begin, late = {"beginning": "cart-7/pay"}, {"settling": ["cart-7/pay", "an earlier key"]}
    seen = told(node, [begin, late, begin])
    assert seen["endings"][0] == seen["endings"][2]

    seen = told(node, [begin, {"settling": ["cart-7/pay"]}, begin])
    assert seen["endings"][0] != seen["endings"][2]


@pytest.mark.parametrize(
    ("status", "echo", "settled"),
    [(201, {}, True), (402, {"idempotency-key": "k"}, True), (402, {}, False), (401, {}, False)],
)
def test_whoever_settles_is_told_whether_to(
    node: Node, status: int, echo: dict[str, str], settled: bool
) -> None:
    """A key of the caller's own may have been sent before."""
    answer = {"kind": "status", "status": status, "headers": echo}
    seen = told(node, [{"body": "{}", "key": "k"}], faults=[answer])

    assert seen["endings"][0]["settled"] is settled


# -------------------------------------------------------------------- offline, and given up


def test_offline_waits_for_the_network_and_sends_nothing(node: Node) -> None:
    seen = told(node, [PAY], offline=[[0, 40]])

    assert [at for at, *_ in seen["attempts"]] == [40]
    assert [event["what"] for event in seen["events"]] == ["offline", "sending", "answered"]
    assert seen["endings"][0]["status"] == 201


def test_offline_for_longer_than_the_budget_is_given_up(node: Node) -> None:
    seen = told(node, [PAY], offline=[[0, 500]])

    assert seen["attempts"] == []
    assert seen["endings"][0]["kind"] == "no-answer"
    assert "offline" in seen["endings"][0]["message"]
    assert seen["endings"][0]["message"].startswith("Not sent, because")
    assert seen["time"] == 90
    assert len(seen["unsettled"]) == 1


LOCAL = ["127.0.0.1:8000", "localhost:8000", "shop.localhost", "[::1]:8000"]


@pytest.mark.parametrize("host", LOCAL)
def test_a_server_on_this_machine_is_reached_offline(node: Node, host: str) -> None:
    """A computer without any network says that it is offline, and is right."""
    pay, sick = {**PAY, "url": f"http://{host}/orders"}, {"kind": "status", "status": 503}
    seen = told(node, [pay], offline=[[0, 500]], isHere=True, faults=[sick, DONE])

    assert [event["what"] for event in seen["events"]] == ["sending", "answered"] * 2
    assert seen["endings"][0]["status"] == 201


@pytest.mark.parametrize("host", [LOCAL[0], "127.0.0.1.example", "localhost.example"])
def test_who_is_not_reached_offline_is_waited_for(node: Node, host: str) -> None:
    seen = told(node, [{**PAY, "url": f"http://{host}/orders"}], offline=[[0, 40]])

    assert [at for at, *_ in seen["attempts"]] == ([0, 40] if host in LOCAL else [40])
    assert seen["endings"][0]["status"] == 201


def test_offline_in_the_middle(node: Node) -> None:
    seen = told(
        node, [PAY], faults=[{"kind": "none", "seconds": 2, "status": 201}], offline=[[1, 30]]
    )

    assert [at for at, *_ in seen["attempts"]] == [0, 30]
    assert len(set(keys(seen))) == 1


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ("3600", "the server asks to wait 3600 s, longer than is left"),
        ("89.5", "the time for all attempts is over"),
    ],
)
def test_a_wait_that_does_not_fit_is_not_begun(node: Node, asked: str, why: str) -> None:
    """The answer is given at once, not when the time is over."""
    sick = {"kind": "status", "status": 503, "headers": {"retry-after": asked}}
    seen = told(node, [PAY], faults=[sick], chances=[0.99], options={"retries": {"backoffS": 1}})

    assert seen["time"] == 0
    assert why in seen["endings"][0]["gaveUp"]


@pytest.mark.parametrize("at", [0.1, 2])
def test_aborted_is_aborted(node: Node, at: float) -> None:
    """In an attempt, and in a pause: no further attempt, and the key is kept."""
    slow = {"kind": "drop", "seconds": 1}
    options = {"retries": {"backoffS": 20}}
    seen = told(node, [PAY], faults=[slow], chances=[0.9], abortAt=at, options=options)

    assert seen["endings"][0]["error"] == "AbortError"
    assert len(seen["attempts"]) == 1
    assert len(seen["unsettled"]) == 1


def test_whoever_is_told_of_an_attempt_can_still_stop_it(node: Node) -> None:
    seen = told(node, [PAY], abortWhen="sending")

    assert seen["endings"][0]["error"] == "AbortError"
    assert seen["attempts"] == []


def test_a_crowd_does_not_storm_a_sick_server(node: Node) -> None:
    sick = [{"kind": "status", "status": 503}] * 2000
    requests = [{"body": "{}"}] * 100
    seen = told(node, requests, faults=sick, options={"budget": {"tokensPerS": 0}})

    assert len(seen["attempts"]) <= 100 + 20 + 20
    assert "retry budget" in seen["endings"][-1]["gaveUp"]


def test_every_attempt_is_told(node: Node) -> None:
    seen = told(node, [PAY], faults=[LOST, DONE])

    sending, lost, again, answered = seen["events"]
    assert (sending["what"], sending["attempt"], sending["intent"]) == ("sending", 1, "cart-7/pay")
    assert (lost["error"], lost["retryInS"], lost["replayed"]) == ("TypeError", 0.25, False)
    assert (again["what"], again["attempt"]) == ("sending", 2)
    assert (answered["status"], answered["retryInS"], answered["gaveUp"]) == (201, None, None)


def test_the_replayed_flag_is_on_the_answer(node: Node) -> None:
    kept = {"kind": "status", "status": 201, "headers": {"idempotent-replayed": "true"}}
    seen = told(node, [PAY], faults=[LOST, kept])

    assert seen["endings"][0]["replayed"] is True
    assert seen["endings"][0]["key"] == keys(seen)[0]


# ------------------------------------------------------------------------ one key, one request


@pytest.mark.parametrize(
    "other",
    [
        {"body": '{"amount": 2}'},
        {"body": '{"amount": 1, "currency": "eur"}'},
        {"method": "PUT"},
        {"url": "https://api.test/refunds"},
        {"url": "https://api.test/orders?for=ada"},
        {"headers": {"content-type": "text/plain"}},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "named", [{"intent": "cart-7/pay", "settle": False}, {"key": "k-4711"}], ids=str
)
def test_a_key_that_is_sent_with_two_requests_is_warned_of(
    node: Node, other: dict[str, Any], named: dict[str, Any]
) -> None:
    first = {"body": '{"amount": 1}', "headers": {"content-type": "application/json"}, **named}
    seen = told(node, [first, first | other])

    [warning] = seen["warnings"]
    assert "this key was sent before with another request" in warning
    assert all(key not in warning for key in keys(seen)), "keys are secrets"
    assert len(seen["attempts"]) == 2, "as in Python, it is sent all the same"


@pytest.mark.parametrize(
    "same",
    [
        {},
        {"body": '{ "b": [{"d": 1, "c": 2}],   "a": 1 }'},
        {"url": "https://api.test/orders?b=2&a=1#there"},
    ],
    ids=str,
)
def test_the_same_request_in_other_words_is_not_warned_of(node: Node, same: dict[str, Any]) -> None:
    json = {"content-type": "application/json; charset=utf-8"}
    first = {"key": "one", "body": '{"a":1,"b":[{"c":2,"d":1}]}', "headers": json}
    first["url"] = "https://api.test/orders?a=1&b=2" if "url" in same else "https://api.test/orders"
    seen = told(node, [first, first | same])

    assert seen["warnings"] == []


def test_a_key_at_another_server_and_a_new_intent_are_not_warned_of(node: Node) -> None:
    elsewhere = {"url": "https://other.test/orders", "key": "one", "body": "{}"}
    seen = told(node, [PAY, PAY | {"body": "[]"}, {"key": "one", "body": "[]"}, elsewhere])

    assert seen["warnings"] == []


# ----------------------------------------------------------------------- storage that is stuck


def test_storage_that_never_answers_is_given_up_and_nothing_is_sent(node: Node) -> None:
    seen = told(node, [PAY, PAY], stuck=1)

    first, second = seen["endings"]
    assert first["kind"] == "no-storage"
    assert "nothing was sent" in first["message"]
    assert "did not answer within 10 s" in first["message"]
    assert second["status"] == 201
    assert seen["time"] == 10
    assert len(seen["attempts"]) == 1


def test_storage_that_is_stuck_after_the_answer_does_not_hide_it(node: Node) -> None:
    seen = told(node, [PAY], stuck=4, options={"shelfS": 4})

    [ending] = seen["endings"]
    assert ending["status"] == 201
    assert seen["time"] == 4
    assert [intent["name"] for intent in seen["unsettled"]] == ["cart-7/pay"]


def test_no_time_at_all_is_no_time(node: Node) -> None:
    with pytest.raises(AssertionError, match="shelfS is 0: give a number greater than 0"):
        told(node, [PAY], options={"shelfS": 0})


@pytest.mark.parametrize(
    "options", [{"retries": {"budgetS": "90"}}, {"retentionS": "3600"}], ids=["budget", "retention"]
)
def test_times_are_numbers(node: Node, options: dict[str, Any]) -> None:
    """Seconds that are text would be written behind the time, not added to it."""
    with pytest.raises(AssertionError, match=r'S is "\d+": give a number greater than 0'):
        told(node, [PAY], options=options)
