"""What refusals look like under each profile, and what official clients make of them."""

from typing import Any

import pytest

from oncekey._core.error_bodies import SHAPES
from oncekey._core.problems import Kind, Problem
from oncekey._core.profiles import PROFILES, profile, render
from oncekey._core.record import Answer
from tests.core.rendering import RETRYABLE, body, header, refusal


def test_the_draft_links_its_documentation() -> None:
    """Section 2.7: a missing key is 400, with a link in the body or as Link rel=describedby."""
    answer = refusal(Kind.MISSING_KEY, "ietf")
    link = header(answer, b"link")
    assert answer.status == 400
    assert header(answer, b"content-type") == b"application/problem+json"
    assert link is not None
    assert link.startswith(b"<https://datatracker.ietf.org/doc/")
    assert link.endswith(b'#missing-key>; rel="describedby"')


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_refusal_names_a_page_only_where_one_was_given(name: str) -> None:
    """No client of ours reads the pages of this repository."""
    for kind in Kind:
        answer = refusal(kind, name)
        assert b"words.md" not in (answer.body or b""), answer.body
        if name != "ietf":  # which asks for a link: to itself, until there is a better one
            assert b"doc" not in (answer.body or b"").replace(b"domain", b"")
            assert header(answer, b"link") is None


def test_the_page_that_was_given_is_named_as_each_shape_does() -> None:
    url = "https://api.example/errors"

    def body_of(name: str) -> dict[str, Any]:
        found: dict[str, Any] = body(render(Problem(Kind.MISMATCH, "Details."), profile(name, url)))
        return found

    assert body_of("oncekey")["docs"] == f"{url}#mismatch"
    assert body_of("stripe")["error"]["doc_url"] == f"{url}#mismatch"
    assert body_of("paypal")["links"][0]["href"] == f"{url}#mismatch"
    answer = render(Problem(Kind.MISMATCH, "Details."), profile("ietf", url))
    assert header(answer, b"link") == f'<{url}#mismatch>; rel="describedby"'.encode()


@pytest.mark.parametrize(
    ("kind", "status", "error_type", "code", "should_retry"),
    [
        (Kind.MISSING_KEY, 400, "invalid_request_error", "missing_key", b"false"),
        (Kind.NO_TENANT, 401, "invalid_request_error", "no_tenant", b"false"),
        (Kind.MISMATCH, 400, "idempotency_error", "mismatch", b"false"),
        (Kind.IN_FLIGHT, 409, "idempotency_error", "idempotency_key_in_use", b"true"),
        (Kind.OUTCOME_UNKNOWN, 409, "idempotency_error", "outcome_unknown", b"false"),
        (Kind.STORE_UNAVAILABLE, 503, "api_error", "store_unavailable", b"true"),
    ],
)
def test_stripe_errors(
    kind: Kind, status: int, error_type: str, code: str, should_retry: bytes
) -> None:
    answer = refusal(kind, "stripe")
    assert answer.status == status
    assert body(answer) == {
        "error": {
            "type": error_type,
            "code": code,
            "message": "Details.",
        }
    }
    assert header(answer, b"stripe-should-retry") == should_retry


def test_square_errors() -> None:
    assert body(refusal(Kind.MISMATCH, "square")) == {
        "errors": [
            {
                "category": "INVALID_REQUEST_ERROR",
                "code": "IDEMPOTENCY_KEY_REUSED",
                "detail": "Details.",
                "field": "idempotency_key",
            }
        ]
    }
    for kind, category in [
        (Kind.STORE_UNAVAILABLE, "API_ERROR"),
        (Kind.NO_TENANT, "AUTHENTICATION_ERROR"),
    ]:
        assert body(refusal(kind, "square"))["errors"][0]["category"] == category


@pytest.mark.parametrize(
    ("kind", "name", "issue"),
    [
        (Kind.MISSING_KEY, "INVALID_REQUEST", "PAYPAL_REQUEST_ID_REQUIRED"),
        (Kind.MISMATCH, "UNPROCESSABLE_ENTITY", "PAYPAL_REQUEST_ID_PREVIOUSLY_USED"),
        (Kind.IN_FLIGHT, "RESOURCE_CONFLICT", "PREVIOUS_REQUEST_IN_PROGRESS"),
        (Kind.STORE_UNAVAILABLE, "SERVICE_UNAVAILABLE", "STORE_UNAVAILABLE"),
        (Kind.NO_TENANT, "AUTHENTICATION_FAILURE", "NO_TENANT"),
    ],
)
def test_paypal_errors(kind: Kind, name: str, issue: str) -> None:
    found = body(refusal(kind, "paypal"))
    assert found["name"] == name
    assert found["details"] == [{"issue": issue, "description": "Details."}]
    assert "links" not in found


@pytest.mark.parametrize(
    ("kind", "status", "code", "transient"),
    [
        (Kind.IN_FLIGHT, 422, "704", b"true"),
        (Kind.MISMATCH, 422, "704", None),
        (Kind.STORE_UNAVAILABLE, 503, "703", b"true"),
        (Kind.INVALID_KEY, 400, "invalid-key", None),
        (Kind.NO_TENANT, 401, "no-tenant", None),
    ],
)
def test_adyen_errors(kind: Kind, status: int, code: str, transient: bytes | None) -> None:
    answer = refusal(kind, "adyen")
    found = body(answer)
    assert (answer.status, found["status"], found["errorCode"]) == (status, status, code)
    assert found["errorType"] == {503: "internal", 401: "security"}.get(status, "validation")
    assert header(answer, b"transient-error") == transient


def test_aws_errors_name_their_code_for_both_protocols() -> None:
    answer = refusal(Kind.MISMATCH, "aws")
    assert answer.status == 400
    assert body(answer)["__type"] == "IdempotentParameterMismatch"
    assert header(answer, b"x-amzn-errortype") == b"IdempotentParameterMismatch"


@pytest.mark.parametrize(
    ("kind", "status", "result"),
    [
        (Kind.INVALID_KEY, 400, b"rejected"),
        (Kind.MALFORMED_REQUEST, 400, b"rejected"),
        (Kind.TOO_OLD, 412, b"rejected"),
        (Kind.MISMATCH, 400, b"rejected"),
        (Kind.IN_FLIGHT, 409, b"accepted"),
    ],
)
def test_azure_errors(kind: Kind, status: int, result: bytes) -> None:
    """The table of Azure Communication Services: a duplicate that matches counts as accepted, also
    while the original is in progress and the status is 409.
    """
    answer = refusal(kind, "azure")
    assert answer.status == status
    assert header(answer, b"repeatability-result") == result
    assert header(answer, b"x-ms-error-code") == body(answer)["error"]["code"].encode()


# The canonical codes and their HTTP statuses, as google.rpc.Code documents them.
GOOGLE = {
    "INVALID_ARGUMENT": {400, 413},  # one code for both
    "FAILED_PRECONDITION": {400},
    "UNAUTHENTICATED": {401},
    "NOT_FOUND": {404},
    "ABORTED": {409},
    "ALREADY_EXISTS": {409},
    "RESOURCE_EXHAUSTED": {429},
    "UNAVAILABLE": {503},
}


@pytest.mark.parametrize("kind", Kind)
def test_gcp_errors_have_canonical_codes_with_their_statuses(kind: Kind) -> None:
    answer = refusal(kind, "gcp")
    error = body(answer)["error"]
    assert error["code"] == answer.status
    assert answer.status in GOOGLE[error["status"]]
    assert error["details"][0]["reason"] == kind.value.replace("-", "_").upper()


def test_every_shape_is_some_profiles() -> None:
    assert {row.shape for row in PROFILES.values()} == set(SHAPES)


# ------------------------------------------------------------------------ official clients
#
# The rules by which official clients decide, as far as they decide by an answer.


def stripe_sdk(answer: Answer, *, node: bool) -> str:
    """What stripe-python 16 and stripe-node 23 do. Retried: what Stripe-Should-Retry says, else 409
    and 5xx; Retry-After, 429, 408 and 425 are not looked at. IdempotencyError: 400 or 404 with that
    type. stripe-node takes a body without `error` for success.
    """
    says = header(answer, b"stripe-should-retry")
    if says == b"true" or (says is None and (answer.status == 409 or answer.status >= 500)):
        return "retry"
    error = body(answer).get("error")
    if error is None:
        return "success" if node else "APIError"
    if answer.status in (400, 404):
        invalid = error["type"] != "idempotency_error"
        return "InvalidRequestError" if invalid else "IdempotencyError"
    return "APIError"


def stainless_retries(answer: Answer) -> bool:
    """SDKs built by Stainless: x-should-retry, else 408, 409, 429 and 5xx."""
    says = header(answer, b"x-should-retry")
    if says is not None:
        return says == b"true"
    return answer.status in (408, 409, 429) or answer.status >= 500


def botocore_retries(answer: Answer) -> bool:
    """botocore's standard mode: 500, 502, 503, 504, and codes on its lists; not 409."""
    listed = {"TransactionInProgressException", "PriorRequestNotComplete", "ThrottlingException"}
    return answer.status in (500, 502, 503, 504) or body(answer)["__type"] in listed


@pytest.mark.parametrize("node", [False, True], ids=["python", "node"])
@pytest.mark.parametrize("kind", Kind)
def test_stripe_libraries_retry_what_may_be_retried_and_raise_the_rest(
    kind: Kind, node: bool
) -> None:
    """An outcome that is unknown must become APIError, which Stripe's documentation has users treat
    as indeterminate; IdempotencyError and InvalidRequestError read as "nothing happened".
    """
    does = stripe_sdk(refusal(kind, "stripe"), node=node)
    assert (does == "retry") == (kind in RETRYABLE)
    assert does != "success"
    if kind is Kind.MISMATCH:
        assert does == "IdempotencyError"
    if kind in (Kind.OUTCOME_UNKNOWN, Kind.ANSWER_NOT_KEPT):
        assert does == "APIError"


def test_problem_json_would_be_success_to_stripe_node() -> None:
    """Why the profile has a shape of its own."""
    assert stripe_sdk(refusal(Kind.MISMATCH, "oncekey"), node=True) == "success"


def test_stripe_retries_wait_long_enough_for_the_first_request() -> None:
    """Two retries by default, each with a timeout of 80 s: together they outlast a handler of 20 s,
    and neither waits until the library or a proxy hangs up.
    """
    policy = PROFILES["stripe"].policy.settled()
    assert policy.in_flight == "wait"
    assert 2 * policy.wait_s >= 20
    assert policy.wait_s < 30 < 80


@pytest.mark.parametrize("name", ["oncekey", "ietf"])
@pytest.mark.parametrize("kind", Kind)
def test_stainless_sdks_retry_what_may_be_retried(name: str, kind: Kind) -> None:
    assert stainless_retries(refusal(kind, name)) == (kind in RETRYABLE)


def test_a_status_of_ones_own_does_not_confuse_stainless_sdks() -> None:
    """They do not retry 425 by themselves, and do retry 409."""
    ours = PROFILES["oncekey"].derive(in_flight_status=425, mismatch_status=409)
    assert stainless_retries(refusal(Kind.IN_FLIGHT, ours))
    assert not stainless_retries(refusal(Kind.MISMATCH, ours))


@pytest.mark.parametrize("kind", Kind)
def test_botocore_retries_what_may_be_retried(kind: Kind) -> None:
    assert botocore_retries(refusal(kind, "aws")) == (kind in RETRYABLE)
