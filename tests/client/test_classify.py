"""Classify responses, in all the ways that servers word them."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from oncekey._core import refusals
from oncekey._core.http_dates import http_date
from oncekey._core.problems import Kind, Problem
from oncekey._core.profiles import PROFILES, render
from oncekey.client._classify import (
    OUTCOME_UNKNOWN,
    Final,
    Mismatched,
    NoResponse,
    RetryLater,
    WholeResponse,
    classify,
)

NOW = 1_700_000_000.0


def said(status: int, body: Any = None, profile: str = "oncekey", **headers: str) -> object:
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return classify(WholeResponse(status, lines, raw), PROFILES[profile], NOW)


def refused(problem: Problem, profile: str) -> object:
    """As our own server says it under this profile."""
    answer = render(problem, PROFILES[profile])
    lines = {name.decode(): value.decode() for name, value in answer.headers}
    return classify(WholeResponse(answer.status, lines, answer.body or b""), PROFILES[profile], NOW)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_s_refusals_are_understood(profile: str) -> None:
    assert isinstance(refused(refusals.mismatch(()), profile), Mismatched)
    assert refused(refusals.contention(), profile) == RetryLater(1.0)
    assert refused(refusals.store_unavailable(), profile) == RetryLater(1.0)
    assert refused(refusals.unsettled(2.0), profile) == RetryLater(2.0)
    assert refused(Problem(Kind.OUTCOME_UNKNOWN, "no"), profile) == OUTCOME_UNKNOWN
    for kind in (Kind.ANSWER_NOT_KEPT, Kind.INVALID_KEY, Kind.TOO_OLD):
        assert refused(Problem(kind, "no"), profile) == Final(), kind


def test_a_mismatch_says_which_fields_differ() -> None:
    verdict = refused(refusals.mismatch(("amount",)), "oncekey")

    assert isinstance(verdict, Mismatched)
    assert verdict.problem.fields == ("amount",)
    assert "amount" in verdict.problem.detail


@pytest.mark.parametrize("status", [500, 501, 502, 503, 504, 599, 408, 425, 429])
def test_what_may_pass_is_asked_for_again(status: int) -> None:
    assert said(status) == RetryLater(None)
    assert said(status, retry_after="7") == RetryLater(7.0)


@pytest.mark.parametrize("profile", PROFILES)
def test_what_nobody_knows_the_outcome_of_is_not_asked_for_again(profile: str) -> None:
    """A retry would not run it; also in profiles that have no header which says not to come."""
    assert said(503, profile=profile, idempotency_outcome="unknown") == OUTCOME_UNKNOWN


@pytest.mark.parametrize("status", [200, 201, 204, 302, 307])
def test_an_answer_is_an_answer(status: int) -> None:
    assert said(status, retry_after="7", stripe_should_retry="true") == Final()


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 410, 412, 413, 415, 422, 451])
@pytest.mark.parametrize("profile", PROFILES)
def test_other_refusals_are_the_caller_s(status: int, profile: str) -> None:
    assert said(status, {"error": "no"}, profile) == Final()
    assert said(status, b"\xff{", profile, retry_after="3") == Final()


def test_no_whole_answer_is_asked_for_again() -> None:
    assert classify(NoResponse(ConnectionError()), PROFILES["oncekey"], NOW) == RetryLater(None)


def test_a_date_is_one_of_the_server_s_clock() -> None:
    """Ten hours ahead of ours, or behind."""
    for ahead_s in (36_000, -36_000):
        date, then = (http_date(NOW + ahead_s + s).decode() for s in (0, 10))
        assert said(503, retry_after=then, date=date) == RetryLater(10.0)
    assert said(503, retry_after=http_date(NOW + 10).decode(), date="today") == RetryLater(10.0)


def test_a_server_that_goes_by_the_draft() -> None:
    """It fixes statuses, and no names of problems."""
    link = "https://developer.example.com/idempotency"
    reused = {"type": link, "title": "Idempotency-Key is already used"}
    outstanding = {"title": "A request is outstanding for this Idempotency-Key"}

    for profile in ("ietf", "oncekey"):
        assert isinstance(said(422, reused, profile), Mismatched)
        assert said(409, outstanding, profile) == RetryLater(None)
        assert said(400, {"type": link, "title": "Idempotency-Key is missing"}, profile) == Final()
        assert said(422, {"title": "The form is not valid"}, profile) == Final()
    assert said(422, {"title": "Idempotency-Key"}, "stripe") == Final()


def test_a_date_to_come_back_at() -> None:
    assert said(503, retry_after="Tue, 14 Nov 2023 22:13:30 GMT") == RetryLater(10.0)
    assert said(503, retry_after="in a while") == RetryLater(None)


# ------------------------------------------------------------------------------- the server's word


@pytest.mark.parametrize("name", ["stripe_should_retry", "x_should_retry"])
def test_the_server_s_word_goes_before_the_status(name: str) -> None:
    assert said(500, **{name: "false"}) == Final()
    assert said(409, **{name: "false"}, profile="stripe") == Final()
    assert said(402, **{name: "true"}) == RetryLater(None)
    assert said(500, **{name: "perhaps"}) == RetryLater(None)


def test_no_word_makes_a_mismatch_pass() -> None:
    error = {"error": {"type": "idempotency_error", "message": "Keys can only be used once."}}

    assert isinstance(said(400, error, "stripe", stripe_should_retry="true"), Mismatched)


def test_a_kept_error_is_not_asked_for_again() -> None:
    """Stripe keeps 500s: asking again brings the same."""
    assert said(500, {}, "stripe", idempotent_replayed="true") == Final()


# --------------------------------------------------------------------------------- as providers do


def test_stripe_as_it_answers() -> None:
    reused = {"error": {"type": "idempotency_error", "code": None, "message": "reused"}}
    busy = {"error": {"type": "invalid_request_error", "code": "idempotency_key_in_use"}}

    assert isinstance(said(400, reused, "stripe"), Mismatched)
    assert said(409, busy, "stripe") == RetryLater(None)
    assert said(409, {"error": {"type": "invalid_request_error"}}, "stripe") == RetryLater(None)
    assert said(409, reused, "stripe") == RetryLater(None)


@pytest.mark.parametrize("code", ["ThrottlingException", "RequestLimitExceeded", "SlowDown"])
def test_aws_says_that_it_is_too_much_with_400(code: str) -> None:
    assert said(400, {"__type": f"com.amazonaws.ecs#{code}"}, "aws") == RetryLater(None)
    assert said(400, b"", "aws", **{"x-amzn-errortype": f"{code}:http://x"}) == RetryLater(None)
    assert said(400, {"__type": "ValidationException"}, "aws") == Final()
    assert said(400, {"__type": code}, "oncekey") == Final()


def test_aws_writes_its_codes_in_more_than_one_way() -> None:
    for code in (
        "IdempotentParameterMismatch",
        "com.amazonaws.dynamodb.v20120810#IdempotentParameterMismatchException",
        "IdempotentParameterMismatch:http://internal.amazon.com/coral/",
    ):
        assert isinstance(said(400, {"__type": code}, "aws"), Mismatched)
        assert isinstance(said(400, b"", "aws", **{"x-amzn-errortype": code}), Mismatched)


def test_google_s_aborted_is_in_flight() -> None:
    assert said(409, {"error": {"code": 409, "status": "ABORTED"}}, "gcp") == RetryLater(None)


def test_adyen_s_704_passes_only_if_it_is_transient() -> None:
    assert said(422, {"errorCode": "704"}, "adyen", transient_error="true") == RetryLater(None)
    assert isinstance(said(422, {"errorCode": "704"}, "adyen"), Mismatched)


def test_a_409_that_does_not_say_why_is_the_application_s_unless_it_says_when() -> None:
    assert said(409, {"detail": "sold out"}) == Final()
    assert said(409, {"detail": "busy"}, retry_after="2") == RetryLater(2.0)
    unknown = {"type": "urn:oncekey:problem:outcome-unknown"}
    assert said(409, unknown, retry_after="2") == OUTCOME_UNKNOWN


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{" * 100_000,
        gzip.compress(b"{}"),
        b'{"type": 3}',
        b'{"type": "urn:oncekey:problem:new-kind"}',
        b'{"error": []}',
        b'{"errors": {}}',
    ],
    ids=range(10),
)
@pytest.mark.parametrize("profile", PROFILES)
def test_bodies_that_say_nothing_break_nothing(body: bytes, profile: str) -> None:
    assert said(400, body, profile) == Final()
    assert said(503, body, profile) == RetryLater(None)
