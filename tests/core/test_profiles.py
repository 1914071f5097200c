"""Profiles: what each demands and answers, and what official clients make of it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from oncekey._core.error_bodies import Shaped
from oncekey._core.key import BadKey
from oncekey._core.policy import DEFAULTS, Policy, keep_definitive, keep_success
from oncekey._core.problems import Kind, Problem
from oncekey._core.profiles import (
    PROFILES,
    BodyField,
    Header,
    Profile,
    QueryParameter,
    profile,
    render,
)
from oncekey._core.record import Answer
from oncekey._core.response_headers import first_headers, replay_headers
from oncekey.errors import Misuse
from tests.core.rendering import RETRYABLE, body, header, refusal

SECRET = "key-that-nobody-may-see"
UUID = "8E03978E-40d5-43e8-bc93-6894a57f9324"


# ---------------------------------------------------------------------------- the table

H, B, Q = Header, BodyField, QueryParameter
DAY_S = 86_400


@pytest.mark.parametrize(
    ("name", "key_in", "chars", "missing", "mismatch", "in_flight", "retention_s", "counted_from"),
    [
        ("oncekey", H("Idempotency-Key"), 255, 400, 422, 409, DAY_S, "completion"),
        ("ietf", H("Idempotency-Key"), 255, 400, 422, 409, DAY_S, "completion"),
        ("stripe", H("Idempotency-Key"), 255, 400, 400, 409, DAY_S, "first use"),
        ("square", B("idempotency_key"), 45, 400, 400, 409, 3 * DAY_S, "completion"),
        ("paypal", H("PayPal-Request-Id"), 108, 400, 422, 409, 3 * DAY_S, "completion"),
        ("adyen", H("Idempotency-Key"), 64, 400, 422, 422, 7 * DAY_S, "first use"),
        ("aws", B("ClientToken"), 64, 400, 400, 400, DAY_S, "completion"),
        ("azure", H("Repeatability-Request-ID"), 255, 400, 400, 409, 600, "first use"),
        ("gcp", Q("requestId"), 255, 400, 400, 409, DAY_S, "completion"),
    ],
)
def test_the_table(
    name: str,
    key_in: Header | BodyField | QueryParameter,
    chars: int,
    missing: int,
    mismatch: int,
    in_flight: int,
    retention_s: float,
    counted_from: str,
) -> None:
    row = PROFILES[name]
    assert (row.name, row.key_in, row.key_chars_max) == (name, key_in, chars)
    statuses = [row.status(k) for k in (Kind.MISSING_KEY, Kind.MISMATCH, Kind.IN_FLIGHT)]
    assert statuses == [missing, mismatch, in_flight]
    assert row.policy.settled().retention_s == retention_s
    assert row.retention_from == counted_from


@pytest.mark.parametrize(
    ("name", "scope", "methods", "in_flight", "keep"),
    [
        ("oncekey", "operation", "POST PATCH", "refuse", keep_definitive),
        ("ietf", "operation", "POST PATCH", "refuse", keep_definitive),
        ("stripe", "tenant", "POST", "wait", keep_definitive),
        ("square", "operation", "POST", "refuse", keep_success),
        ("paypal", "operation", "POST", "refuse", keep_definitive),
        ("adyen", "tenant", "POST", "refuse", keep_definitive),
        ("aws", "tenant", "POST", "refuse", keep_definitive),
        ("azure", "operation", "POST PUT PATCH DELETE", "refuse", keep_definitive),
        ("gcp", "tenant", "POST PUT PATCH DELETE", "wait", keep_definitive),
    ],
)
def test_the_policies(name: str, scope: str, methods: str, in_flight: str, keep: object) -> None:
    policy = PROFILES[name].policy.settled()
    assert (policy.scope, policy.in_flight, policy.keep) == (scope, in_flight, keep)
    assert policy.methods == frozenset(methods.split())


def test_an_application_lies_over_its_profile() -> None:
    policy = Policy(scope="operation").over(PROFILES["stripe"].policy).over(DEFAULTS)
    assert (policy.scope, policy.in_flight, policy.lease_s) == ("operation", "wait", 30.0)


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("kind", Kind)
def test_every_profile_can_say_everything(name: str, kind: Kind) -> None:
    """Shaped, counted, not to be cached, and with Retry-After where that is known."""
    answer = refusal(kind, name)
    assert answer.body is not None
    assert 400 <= answer.status <= 599
    assert json.loads(answer.body)
    assert header(answer, b"content-length") == b"%d" % len(answer.body)
    assert header(answer, b"cache-control") == b"no-store"
    assert header(answer, b"retry-after") == (b"2" if kind in RETRYABLE else None)
    assert all(name == name.lower() for name, _ in answer.headers)


@pytest.mark.parametrize("name", PROFILES)
def test_every_profile_tells_the_kinds_apart(name: str) -> None:
    """Except where a provider has one code for several: a store that is down, a release that is
    behind, no room for a body and an outcome that is not found out yet are all "not available";
    Adyen's 704 is in flight or a mismatch, told by its header.
    """

    def rendered_body(kind: Kind) -> str:
        answer = refusal(kind, name)
        marks = [header(answer, mark) for mark in (b"transient-error", b"x-amzn-errortype")]
        return f"{answer.status} {body(answer)} {marks}"

    rest = set(Kind) - {Kind.NEWER_RECORD, Kind.NO_ROOM, Kind.UNSETTLED}
    assert len({rendered_body(kind) for kind in rest}) == len(rest)


# ------------------------------------------------------------------------------- deriving


def test_statuses_are_one_argument_away() -> None:
    base = PROFILES["oncekey"]
    ours = base.derive(name="ours", in_flight_status=425, mismatch_status=409, missing_status=428)

    assert ours.name == "ours"
    assert refusal(Kind.IN_FLIGHT, ours).status == 425
    assert refusal(Kind.MISMATCH, ours).status == 409
    assert refusal(Kind.MISSING_KEY, ours).status == 428
    assert body(refusal(Kind.MISMATCH, ours))["status"] == 409
    assert base.status(Kind.MISMATCH) == 422, "the original is untouched"


def test_derived_statuses_and_policies_lie_over_those_of_their_base() -> None:
    base = PROFILES["stripe"].derive(
        statuses={Kind.TOO_LARGE: 400}, policy=Policy(retention_s=60.0)
    )
    assert base.status(Kind.TOO_LARGE) == 400
    assert base.status(Kind.MISMATCH) == 400
    assert (base.policy.retention_s, base.policy.scope) == (60.0, "tenant")


def test_what_a_client_counts_on_is_inherited_unless_the_retention_is_said() -> None:
    paypal, azure = PROFILES["paypal"], PROFILES["azure"]

    assert paypal.derive(name="ours").relied_s == 3 * 3600
    assert paypal.derive(name="ours", policy=Policy(lease_s=5.0)).relied_s == 3 * 3600
    assert paypal.derive(name="ours", policy=Policy(retention_s=60.0)).relied_s == 60.0
    assert azure.derive(name="ours", policy=Policy(retention_s=60.0)).relied_s == 30.0
    said = paypal.derive(name="ours", policy=Policy(retention_s=60.0), relied_s=50.0)
    assert said.derive(name="theirs").relied_s == 50.0


def test_a_shape_of_ones_own() -> None:
    def ours(problem: Problem, status: int, docs_url: str | None) -> Shaped:
        return Shaped({"fault": problem.kind, "see": docs_url}, b"application/vnd.ours+json")

    answer = refusal(Kind.MISMATCH, PROFILES["oncekey"].derive(shape=ours, docs_url="/help"))
    assert body(answer) == {"fault": "mismatch", "see": "/help"}
    assert header(answer, b"content-type") == b"application/vnd.ours+json"


def test_a_profile_by_name_or_itself() -> None:
    assert profile("ietf") is PROFILES["ietf"]
    assert profile(PROFILES["ietf"]) is PROFILES["ietf"]
    with pytest.raises(Misuse, match=r"'strip'.*oncekey, ietf, stripe, square"):
        profile("strip")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"in_flight_status": 200}, "in-flight must be from 400 to 599"),
        ({"statuses": {Kind.TOO_OLD: 700}}, "too-old must be from 400"),
        ({"shape": "soap"}, "no shape 'soap': choose from problem, stripe"),
        ({"key_chars_max": 256}, "from 1 to 255"),
        ({"key_chars_max": 0}, "from 1 to 255"),
        ({"key_echo": "Key"}, "'Key' is not the name of a header in lower case"),
        ({"replay_marker": ("a b", "true")}, "'a b'"),
        ({"request_id_headers": ("x-id\r\n",)}, "is not the name of a header"),
        ({"retention_from": "birth"}, "'completion' or 'first use'"),
        ({"relied_s": 0}, "relied_s=0: give seconds"),
        ({"docs_url": "https://a/>;x"}, "docs_url"),
        ({"docs_url": "a b"}, "docs_url"),
        ({"in_flight": 425}, "Profile has no in_flight: choose from"),
        ({"own_names": frozenset()}, "Profile has no own_names"),
        ({"mismatch": 409}, "mismatch_status"),
        ({"mismatch_status": "409"}, "must be from 400 to 599, not '409'"),
    ],
)
def test_mistakes_are_named_when_a_profile_is_made(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Misuse, match=complaint):
        PROFILES["oncekey"].derive(**changes)


def test_profiles_are_values() -> None:
    assert PROFILES["oncekey"].derive() == PROFILES["oncekey"]
    assert hash(PROFILES["oncekey"].derive()) == hash(PROFILES["oncekey"])
    assert PROFILES["oncekey"].derive(mismatch_status=409) != PROFILES["oncekey"]
    statuses = {Kind.MISMATCH: 409}
    made = Profile(name="made", statuses=statuses)
    statuses[Kind.MISMATCH] = 200
    assert made.status(Kind.MISMATCH) == 409


# ----------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("name", "chars"),
    [("adyen", 64), ("square", 45), ("aws", 64), ("paypal", 108), ("stripe", 255)],
)
def test_keys_are_as_long_as_the_provider_takes_them(name: str, chars: int) -> None:
    assert PROFILES[name].key("k" * chars) == "k" * chars
    outcome = PROFILES[name].key("k" * (chars + 1))
    if chars < 255:  # what is longer is refused before any profile sees it
        assert outcome == BadKey(f"The key is longer than {chars} characters. Send a shorter one.")


@pytest.mark.parametrize("name", ["azure", "gcp"])
def test_e9_uuids_are_the_same_in_either_case_where_only_uuids_are_taken(name: str) -> None:
    """OASIS has servers take the 36 characters of a UUID in either case; Azure and Google Cloud
    take nothing else.
    """
    assert PROFILES[name].key(UUID) == PROFILES[name].key(UUID.lower()) == UUID.lower()
    for other in ("order-17", UUID[:-1], UUID + "0", UUID.replace("-", ""), "g" + UUID[1:]):
        assert isinstance(PROFILES[name].key(other), BadKey)


@pytest.mark.parametrize("name", sorted(set(PROFILES) - {"azure", "gcp"}))
def test_e9_elsewhere_case_counts(name: str) -> None:
    assert PROFILES[name].key(UUID) == UUID


def test_reasons_do_not_repeat_the_key() -> None:
    for row in PROFILES.values():
        outcome = row.key(SECRET * 9)
        assert not isinstance(outcome, BadKey) or SECRET not in outcome.reason


def test_azure_asks_when_a_request_was_first_sent() -> None:
    assert PROFILES["azure"].first_sent_in == Header("Repeatability-First-Sent")
    assert refusal(Kind.TOO_OLD, "azure").status == 412
    assert refusal(Kind.MALFORMED_REQUEST, "azure").status == 400


# ------------------------------------------------------------------------------------- browsers


def test_e14_what_a_browser_must_be_allowed_to_send() -> None:
    assert PROFILES["oncekey"].cors_allow_headers == ("Idempotency-Key",)
    assert PROFILES["azure"].cors_allow_headers == (
        "Repeatability-Request-ID",
        "Repeatability-First-Sent",
    )
    assert PROFILES["square"].cors_allow_headers == ()  # the key travels in the body
    assert PROFILES["aws"].cors_allow_headers == ("X-Amz-Target",)


@pytest.mark.parametrize("name", PROFILES)
def test_e14_a_script_may_read_every_header_that_a_profile_writes(name: str) -> None:
    chosen = replace(PROFILES[name], shape="problem")  # a provider's codes stand in the body too
    exposed = {header.encode() for header in chosen.cors_expose_headers}
    first = Answer(422, ((b"request-id", b"r1"),), b"{}")
    lines = [*first_headers(first, chosen, "k1", 0.0), *replay_headers(first, chosen, "k1", 0.0)]
    refused = Problem(Kind.IN_FLIGHT, "", retryable=True, retry_after_s=1.0, location=b"/orders/1")
    lines += render(refused, chosen).headers
    always_readable = {b"content-type", b"content-length", b"cache-control", b"request-id"}
    assert {header for header, _ in lines} - always_readable <= exposed
