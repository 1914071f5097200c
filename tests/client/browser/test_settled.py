"""Settled intents in the browser's client: one that was answered stays answered under its name."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from oncekey._core.key import short_hash
from tests.client.browser.node import Node
from tests.client.browser.test_intents import DONE, LOST, PAY, keys, told

KEPT_HEADERS = {"idempotency-expires": "Mon, 12 Jan 1970 16:46:40 GMT"}  # in 10,800 s
DECLINED = {"kind": "status", "status": 402, "headers": KEPT_HEADERS, "body": '{"no": "funds"}'}
OTHER = {**PAY, "body": '{"amount": 2}'}
BEGIN = {"beginningAnew": "cart-7/pay"}
ONCE = {"retries": {"attemptsMax": 1}}


def test_three_clicks_are_one_request(node: Node) -> None:
    answer = {**DONE, "body": '{"charge": 1}', "headers": {"set-cookie": "a=b", "x-more": "1"}}
    seen = told(node, [PAY, PAY, PAY], faults=[answer])

    assert len(seen["attempts"]) == 1
    first, *again = seen["endings"]
    assert (first["attempts"], first["remembered"], first["withoutBody"]) == (1, False, False)
    for ending in again:
        assert (ending["status"], ending["body"]) == (201, '{"charge": 1}')
        assert ending["headers"] == {"content-type": "application/json"}
        assert (ending["attempts"], ending["remembered"], ending["replayed"]) == (0, True, True)
        assert (ending["settled"], ending["gaveUp"], ending["key"]) == (True, None, first["key"])
    assert seen["unsettled"] == []


@pytest.mark.parametrize("status", [200, 201, 202, 204, 205, 206, 299])
def test_every_success_is_given_again(node: Node, status: int) -> None:
    answer = {"kind": "status", "status": status, "body": None if status in (204, 205) else "x"}
    seen = told(node, [PAY, PAY], faults=[answer])

    assert len(seen["attempts"]) == 1
    assert [ending["status"] for ending in seen["endings"]] == [status] * 2
    assert seen["endings"][0]["body"] == seen["endings"][1]["body"]


@pytest.mark.parametrize("body", [b"", b"\x00\xff\x80 no text", b"x" * 65_536], ids=len)
def test_bodies_are_given_again_byte_for_byte(node: Node, body: bytes) -> None:
    answer = {**DONE, "base64": base64.b64encode(body).decode()}
    seen = told(node, [PAY, PAY], faults=[answer], bytes=True)

    assert [base64.b64decode(ending["body"]) for ending in seen["endings"]] == [body] * 2
    assert seen["endings"][1]["withoutBody"] is False


@pytest.mark.parametrize("size", [65_537, 9_000_000], ids=str)
def test_a_longer_body_is_settled_and_told_so(node: Node, size: int) -> None:
    seen = told(node, [PAY, PAY], faults=[{**DONE, "body": "x" * size}])

    first, again = seen["endings"]
    assert len(seen["attempts"]) == 1
    assert len(first["body"]) == size
    assert (again["status"], again["body"]) == (201, "")
    assert (again["remembered"], again["withoutBody"], again["settled"]) == (True, True, True)


def test_it_is_remembered_as_long_as_the_server_remembers(node: Node) -> None:
    answer = {**DONE, "headers": KEPT_HEADERS}
    later = [{**PAY, "restS": rest} for rest in (10_799, 2)]
    seen = told(node, [PAY, *later], faults=[answer])

    assert [ending["remembered"] for ending in seen["endings"]] == [False, True, False]
    assert seen["endings"][1]["expires"] == KEPT_HEADERS["idempotency-expires"]
    assert len(set(keys(seen))) == 2


def test_a_server_that_does_not_say_so_is_taken_for_one_of_24_hours(node: Node) -> None:
    later = [{**PAY, "restS": rest} for rest in (24 * 3600 - 1, 2)]
    seen = told(node, [PAY, *later])
    assert [ending["remembered"] for ending in seen["endings"]] == [False, True, False]

    later = [{**PAY, "restS": rest} for rest in (599, 2)]
    seen = told(node, [PAY, *later], options={"retentionS": 600})
    assert [ending["remembered"] for ending in seen["endings"]] == [False, True, False]


def test_what_another_route_says_does_not_shorten_it(node: Node) -> None:
    """That one remembers for 3 hours; nobody knows how long this one does."""
    other = {**DONE, "headers": KEPT_HEADERS}
    later = {**PAY, "restS": 20_000}
    seen = told(node, [{**PAY, "intent": "cart-7/note"}, PAY, later], faults=[other, DONE, DONE])

    assert [ending["remembered"] for ending in seen["endings"]] == [False, False, True]


def test_a_clock_that_is_ahead_does_not_forget_at_once(node: Node) -> None:
    """By the server's own clock, if it is shown; else as long as servers usually remember."""
    date = "Fri, 02 Jan 1970 00:00:00 GMT"
    expires = {"idempotency-expires": "Fri, 02 Jan 1970 01:00:00 GMT"}
    later = [{**PAY, "restS": rest} for rest in (3599, 2)]
    shown = told(node, [PAY, *later], faults=[{**DONE, "headers": {**expires, "date": date}}])
    assert [ending["remembered"] for ending in shown["endings"]] == [False, True, False]

    hidden = told(node, [PAY, *later], faults=[{**DONE, "headers": expires}])
    assert [ending["remembered"] for ending in hidden["endings"]] == [False, True, True]


# ------------------------------------------------------------------ another request, the same name


@pytest.mark.parametrize(
    "other",
    [
        {"body": '{"amount": 2}'},
        {"method": "PUT"},
        {"url": "https://api.test/refunds"},
        {"url": "https://other.test/orders"},
        {"url": "https://api.test/orders?for=ada"},
        {"headers": {"content-type": "text/plain"}},
        {"headers": {"content-type": "application/json", "authorization": "Bearer another"}},
        {"stream": "the same?"},
    ],
    ids=str,
)
def test_a_changed_request_under_a_settled_name_is_refused(
    node: Node, other: dict[str, Any]
) -> None:
    """It is neither sent nor answered with the answer of the other one."""
    first = {**PAY, "headers": {"content-type": "application/json"}, "body": '{"amount": 1}'}
    seen = told(node, [first, {**first, **other}, first])

    assert len(seen["attempts"]) == 1
    refused = seen["endings"][1]
    assert (refused["kind"], refused["sent"]) == ("settled", False)
    assert 'begin("cart-7/pay")' in refused["message"]
    assert "nothing was sent" in refused["message"]
    assert seen["endings"][2]["remembered"] is True


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"amount": 9007199254740993}', '{"amount": 9007199254740992}'),
        ('{"amount": 1e400}', '{"amount": 2e400}'),
        ('{"amount": 1, "amount": 2}', '{"amount": 2}'),
        ('{"amount": 0.1}', '{"amount": 0.1000000000000000055}'),
        ('{"amount": -0}', '{"amount": 0}'),
        ("[1, 2]", "[2, 1]"),
        ("a=1&b=2", "b=2&a=1"),
    ],
    ids=lambda text: text[:30],
)
def test_where_it_is_in_doubt_two_requests_are_not_the_same(
    node: Node, one: str, other: str
) -> None:
    json = {**PAY, "headers": {"content-type": "application/json"}}
    seen = told(node, [{**json, "body": one}, {**json, "body": other}])

    assert seen["endings"][1]["kind"] == "settled"


@pytest.mark.parametrize(
    "other",
    [{"body": '{ "b": [{"d": 1, "c": 2}],\n "a": "x y" }'}, {"url": "/orders#there"}],
    ids=str,
)
def test_the_same_request_in_other_words_is_the_same(node: Node, other: dict[str, Any]) -> None:
    json = {**PAY, "headers": {"content-type": "application/json"}}
    json["body"] = '{"a":"x y","b":[{"c":2,"d":1}]}'
    other = {**other, **({"url": f"https://api.test{other['url']}"} if "url" in other else {})}
    seen = told(node, [json, {**json, **other}])

    assert seen["endings"][1]["remembered"] is True


def test_forms_are_compared_by_their_fields_and_files(node: Node) -> None:
    """Their boundary is another one each time."""
    form = [["amount", "1"], ["file", {"name": "a.txt", "text": "x" * 3_000_000}]]
    more = [["amount", "1"], ["file", {"name": "a.txt", "text": "x" * 2_999_999 + "y"}]]
    turned = list(reversed(form))
    requests = [{"intent": "a", "form": each} for each in (form, form, more, turned)]
    seen = told(node, requests)

    assert len(seen["attempts"]) == 1
    assert [ending.get("kind") for ending in seen["endings"]] == [None, None, "settled", "settled"]


def test_large_bodies_are_compared_by_all_their_bytes(node: Node) -> None:
    large = "x" * 3_000_000
    bodies = [large, large, large[:-1] + "y", "y" + large[1:]]
    seen = told(node, [{"intent": "a", "body": body} for body in bodies])

    assert [ending.get("kind") for ending in seen["endings"]] == [None, None, "settled", "settled"]


def test_begin_begins_anew(node: Node) -> None:
    seen = told(node, [PAY, BEGIN, PAY, BEGIN, OTHER, PAY])

    assert len(set(keys(seen))) == 3
    assert seen["endings"][1] is None
    assert seen["endings"][5]["kind"] == "settled"


def test_begin_gives_what_it_gave_up(node: Node) -> None:
    """Nobody knows whether it was carried out; whoever begins anew has decided that."""
    seen = told(node, [PAY, BEGIN, PAY], faults=[LOST], options=ONCE)

    assert len(set(keys(seen))) == 2
    assert seen["endings"][1]["key"] == keys(seen)[0]


def test_a_key_that_was_given_up_does_not_settle_what_was_begun_anew(node: Node) -> None:
    """Its answer comes when another tab has begun anew."""
    seen = told(node, [PAY, PAY, PAY], beginAnewAt=1, faults=[{**DONE, "seconds": 2}])

    first, second = keys(seen)
    assert first != second
    assert [ending["remembered"] for ending in seen["endings"]] == [False, False, True]
    assert seen["endings"][2]["key"] == second


# ------------------------------------------------------------------------------ other answers


@pytest.mark.parametrize(
    "headers",
    [KEPT_HEADERS, {"idempotent-replayed": "true"}, {"idempotency-key": "$key"}],
    ids=["expires", "replayed", "echo"],
)
def test_a_stored_refusal_is_given_again_to_the_same_request(
    node: Node, headers: dict[str, str]
) -> None:
    seen = told(node, [PAY, PAY, OTHER, OTHER], faults=[{**DECLINED, "headers": headers}])

    declined, again, other, settled = seen["endings"]
    assert (declined["status"], again["status"], again["body"]) == (402, 402, '{"no": "funds"}')
    assert again["remembered"] is True
    assert (other["status"], other["remembered"], settled["remembered"]) == (201, False, True)
    first, second = keys(seen)
    assert first != second


def test_after_a_stored_refusal_begin_begins_anew(node: Node) -> None:
    seen = told(node, [PAY, BEGIN, PAY], faults=[DECLINED])

    assert [ending and ending["status"] for ending in seen["endings"]] == [402, None, 201]
    assert len(set(keys(seen))) == 2


def test_a_refusal_that_is_not_stored_is_not_remembered(node: Node) -> None:
    seen = told(node, [PAY, PAY], faults=[{"kind": "status", "status": 422}])

    assert [ending["status"] for ending in seen["endings"]] == [422, 201]


@pytest.mark.parametrize("settle", [True, False], ids=["by itself", "by the page"])
def test_a_refusal_that_is_not_stored_leaves_the_key_to_those_who_have_it_too(
    node: Node, settle: bool
) -> None:
    """A double click: the first is refused, say by a lock that somebody holds; then it is done."""
    refused = {"kind": "status", "status": 409, "seconds": 2}
    charged = {**DONE, "seconds": 5}
    pay = {**PAY, "settle": settle}
    seen = told(node, [{"together": [pay, pay, PAY]}, PAY], faults=[refused, charged])

    assert len(set(keys(seen))) == 1
    (first, second, third), again = seen["endings"]
    assert [each["status"] for each in (first, second, third)] == [409, 201, 201]
    assert (first["settled"], second["settled"], third["settled"]) == (False, True, True)
    assert again["remembered"] is True


def test_what_a_redirect_led_to_settles_only_if_the_server_stored_it(node: Node) -> None:
    """A login page is a success, and no answer to what was sent."""
    login = {**DONE, "redirected": True, "body": "Please log in"}
    seen = told(node, [PAY, PAY, PAY], faults=[login, DONE])
    assert [ending["settled"] for ending in seen["endings"]] == [False, True, True]
    assert [ending["remembered"] for ending in seen["endings"]] == [False, False, True]
    assert len(seen["attempts"]) == 2
    assert len(set(keys(seen))) == 1

    for headers in (KEPT_HEADERS, {"idempotent-replayed": "true"}):
        seen = told(node, [PAY, PAY], faults=[{**DONE, "redirected": True, "headers": headers}])
        assert [ending["settled"] for ending in seen["endings"]] == [True, True]
        assert len(seen["attempts"]) == 1


@pytest.mark.parametrize("status", [400, 404, 410, 422])
def test_a_refusal_to_which_a_redirect_led_keeps_the_key(node: Node, status: int) -> None:
    """It was carried out, and the page of what was made cannot be found yet."""
    led = {"kind": "status", "status": status, "redirected": True}
    seen = told(node, [PAY, PAY, PAY], faults=[led, DONE])
    assert [ending["settled"] for ending in seen["endings"]] == [False, True, True]
    assert len(set(keys(seen))) == 1

    seen = told(node, [PAY, OTHER], faults=[{**led, "headers": KEPT_HEADERS}])
    assert [ending["settled"] for ending in seen["endings"]] == [True, True]
    assert len(set(keys(seen))) == 2


def test_an_intent_that_timed_out_keeps_its_key(node: Node) -> None:
    """A changed request too: the server says that the key belongs to another one."""
    mismatch = '{"type": "urn:oncekey:problem:mismatch", "detail": "Other."}'
    refused = {"kind": "status", "status": 422, "body": mismatch}
    seen = told(node, [PAY, OTHER, PAY, PAY], faults=[LOST, refused, DONE], options=ONCE)

    assert len(set(keys(seen))) == 1
    assert len(seen["attempts"]) == 3
    assert [each.get("kind") for each in seen["endings"]] == ["no-answer", "mismatch", None, None]
    assert seen["endings"][3]["remembered"] is True


@pytest.mark.parametrize("status", [500, 503])
def test_a_kept_error_is_given_again_and_is_no_leave_to_do_it_again(
    node: Node, status: int
) -> None:
    """It may have come after the effect."""
    kept = {"kind": "status", "status": status, "headers": {"idempotent-replayed": "true"}}
    seen = told(node, [PAY, PAY, OTHER], faults=[kept])

    assert [ending.get("status") for ending in seen["endings"]] == [status, status, None]
    assert seen["endings"][2]["kind"] == "settled"
    assert len(seen["attempts"]) == 1


def test_an_answer_that_is_settled_later_stays_settled_too(node: Node) -> None:
    later = {**PAY, "settle": False}
    settling = {"settling": ["cart-7/pay"]}
    seen = told(node, [later, later, settling, PAY, later])

    assert len(seen["attempts"]) == 2
    assert len(set(keys(seen))) == 1
    assert [each and each["remembered"] for each in seen["endings"]] == [
        *(False, False, None, True, True)
    ]


def test_what_is_given_up_and_settled_frees_its_name(node: Node) -> None:
    seen = told(node, [PAY, {"settling": ["cart-7/pay"]}, PAY], faults=[LOST], options=ONCE)

    assert len(set(keys(seen))) == 2


def test_the_key_of_a_settled_intent_is_the_one_that_it_had(node: Node) -> None:
    """Sent by whoever asks for it, it brings the kept answer; when that is forgotten, it is not
    given out.
    """
    key = {"beginning": "cart-7/pay"}
    seen = told(node, [PAY, key, {**key, "restS": 24 * 3600 - 60}])

    assert seen["endings"][1] == keys(seen)[0]
    assert seen["endings"][2]["kind"] == "settled"


def test_offline_the_answer_is_there(node: Node) -> None:
    seen = told(node, [PAY, PAY], offline=[[1, 500]])

    assert seen["endings"][1]["remembered"] is True
    assert seen["time"] < 1


def test_whoever_has_aborted_is_given_no_answer(node: Node) -> None:
    seen = told(node, [PAY, {**PAY, "aborted": True}])
    assert seen["endings"][1]["error"] == "AbortError"


# ------------------------------------------------------------------------ accounts, and sign-out


def test_accounts_do_not_see_each_other_s_answers(node: Node) -> None:
    ada, bob = {**PAY, "account": "ada"}, {**PAY, "account": "bob/cart-7"}
    odd = {**PAY, "account": "bob", "intent": "cart-7/cart-7/pay"}
    seen = told(node, [ada, bob, odd, PAY, ada, bob])

    assert [ending["remembered"] for ending in seen["endings"]] == [False] * 4 + [True] * 2
    assert len(set(keys(seen))) == 4


def test_accounts_do_not_see_each_other_s_intents(node: Node) -> None:
    ada = {**PAY, "account": "ada", "note": "100 EUR"}
    listing = [{"listing": True, "account": name} for name in ("ada", "bob")]
    seen = told(node, [ada, *listing], faults=[LOST], options=ONCE)

    assert [intent["note"] for intent in seen["endings"][1]] == ["100 EUR"]
    assert seen["endings"][2] == []
    assert seen["unsettled"] == []


@pytest.mark.parametrize("account", [None, "", 7, "x" * 513])
def test_an_account_that_is_none_is_refused_at_once(node: Node, account: Any) -> None:
    """As of a page whose user has not logged in yet: it would share its answers with all."""
    with pytest.raises(AssertionError, match=r"account is .*: give"):
        told(node, [PAY], options={"account": account})


def test_with_an_account_new_credentials_change_nothing(node: Node) -> None:
    first = {**PAY, "account": "ada", "headers": {"authorization": "Bearer 1"}}
    seen = told(node, [first, {**first, "headers": {"authorization": "Bearer 2"}}])

    assert seen["endings"][1]["remembered"] is True


@pytest.mark.parametrize("account", [{}, {"account": "ada"}], ids=["shared", "ada"])
def test_sign_out_forgets_answers_and_keeps_what_is_under_way(
    node: Node, account: dict[str, str]
) -> None:
    pay, other = {**PAY, **account}, {**PAY, **account, "intent": "other", "note": "100 EUR"}
    bob = {**PAY, "account": "bob"}
    requests = [pay, bob, other, {"signingOut": {}, **account}]
    listing = {"listing": True, **account}
    seen = told(
        node, [*requests, pay, bob, listing, other], faults=[DONE, DONE, LOST], options=ONCE
    )

    *_, left, again, bobs, listed, resent = seen["endings"]
    assert [(each["name"], each["note"]) for each in left] == [("other", "100 EUR")]
    assert (again["remembered"], bobs["remembered"]) == (False, True)
    assert resent["key"] == left[0]["key"], "it may have been carried out"
    # Without an account nobody can tell whose it was.
    assert [each["note"] for each in listed] == (["100 EUR"] if account else [])


def test_sign_out_of_everybody(node: Node) -> None:
    ada, bob = {**PAY, "account": "ada"}, {**PAY, "account": "bob"}
    seen = told(node, [PAY, ada, bob, {"signingOut": {"everyone": True}}, PAY, ada, bob])

    assert [each["remembered"] for each in seen["endings"] if isinstance(each, dict)] == [False] * 6
    assert seen["stored"] == ["cart-7/pay"] * 3


@pytest.mark.parametrize("account", [{}, {"account": "ada"}], ids=["shared", "ada"])
def test_an_answer_that_comes_after_the_sign_out_is_not_kept(
    node: Node, account: dict[str, str]
) -> None:
    seen = told(node, [{**PAY, **account}], signOutAt=1, faults=[{**DONE, "seconds": 2}], **account)

    assert seen["endings"][0]["status"] == 201
    assert seen["stored"] == []


# --------------------------------------------------------------------------------- its limits


def test_the_oldest_answers_are_dropped_before_the_names_they_settle(node: Node) -> None:
    many = [{**PAY, "intent": f"cart-{number}", "restS": 1} for number in range(66)]
    seen = told(node, [*many, *many[:3], many[-1]], faults=[])

    again = seen["endings"][66:]
    assert [each["remembered"] for each in again] == [True] * 4
    assert [each["withoutBody"] for each in again] == [True, True, False, False]


def test_settled_names_are_bounded_by_number(node: Node) -> None:
    many = [{**PAY, "intent": f"cart-{number}", "restS": 1} for number in range(1003)]
    seen = told(node, many)

    assert len(seen["stored"]) == 1000
    assert "cart-2" not in seen["stored"]
    assert "cart-1002" in seen["stored"]


def test_settled_names_are_bounded_by_age_whoever_they_belong_to(node: Node) -> None:
    bobs = {**PAY, "account": "bob"}
    seen = told(node, [PAY, bobs, {**PAY, "intent": "new", "restS": 24 * 3600 + 1}])

    assert seen["stored"] == ["new"]


def test_what_is_unsettled_is_never_dropped_for_another(node: Node) -> None:
    """It is refused instead: nothing was sent under it yet."""
    many = [{"beginning": f"cart-{number}"} for number in range(1002)]
    seen = told(node, [*many, {"beginning": "cart-0"}, {"settling": ["cart-1"]}, many[-1]])

    assert [each["kind"] for each in seen["endings"][1000:1002]] == ["no-storage"] * 2
    assert "1000 intents are not settled" in seen["endings"][1000]["message"]
    assert seen["endings"][1002] == seen["endings"][0]
    assert isinstance(seen["endings"][1004], str)
    assert len(seen["stored"]) == 1000


def test_what_nobody_asked_for_in_a_month_is_dropped(node: Node) -> None:
    """Until then whoever sends it is told that it is too old."""
    rest = [{**PAY, "restS": days * 86_400} for days in (29, 3)]
    new = {**PAY, "intent": "new"}
    seen = told(node, [PAY, rest[0], new, rest[1], new], faults=[LOST], options=ONCE)

    assert seen["endings"][1]["kind"] == "too-old"
    assert seen["endings"][3]["kind"] == "too-old"
    again = told(node, [PAY, {**new, "restS": 32 * 86_400}, PAY], faults=[LOST], options=ONCE)
    assert again["endings"][2]["status"] == 201


def test_where_there_is_no_room_for_an_answer_its_name_is_settled(node: Node) -> None:
    seen = told(node, [PAY, PAY], faults=[{**DONE, "body": "x" * 5_000}], roomBytes=2_000)

    first, again = seen["endings"]
    assert len(first["body"]) == 5_000
    assert (again["remembered"], again["withoutBody"]) == (True, True)
    assert len(seen["attempts"]) == 1


# -------------------------------------------------------------------------- secrets, and digests


def test_p12_no_message_shows_a_key(node: Node) -> None:
    said = {"error": {"type": "idempotency_error", "message": "Try a key other than 'k-4711'."}}
    refused = {"kind": "status", "status": 400, "json": said}
    mine = {"key": "k-4711", "body": "{}"}
    options = {**ONCE, "profile": "stripe"}
    seen = told(node, [mine, mine], faults=[LOST, refused], options=options)

    for ending in seen["endings"]:
        assert "k-4711" not in ending["message"]
        assert short_hash("k-4711") in ending["message"]
        assert ending["key"] == "k-4711"
        assert "key" not in ending["shown"], "reports of errors list their own names"


def test_p12_of_a_request_only_a_digest_is_kept(node: Node) -> None:
    secret = {**PAY, "body": "sesame", "headers": {"authorization": "Bearer sesame"}}
    seen = told(node, [secret])

    assert "sesame" not in seen["shelf"]


def test_what_was_not_sent_says_so(node: Node) -> None:
    """As far as `fetch` tells: a refused connection looks like a lost answer."""
    offline = {"offline": [[0, 10_000]]}
    [new, again] = told(node, [PAY, PAY], **offline)["endings"]
    assert (new["sent"], again["sent"]) == (False, False)
    assert new["message"].startswith("Not sent, because")
    assert again["message"].startswith("Not sent this time, because")

    [lost] = told(node, [PAY], faults=[LOST], options=ONCE)["endings"]
    assert lost["sent"] is True
    assert "nobody knows" in lost["message"]


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, 100_000])
def test_digests_are_sha256(node: Node, size: int) -> None:
    text = "".join(chr(33 + at % 90) for at in range(size))

    assert node.ask("sha256", [text]) == [hashlib.sha256(text.encode()).hexdigest()]
