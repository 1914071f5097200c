"""Refusals on the wire: every kind explained, every text safe, nothing unbounded."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncekey._core.backoff import RETRY_AFTER_S_MAX
from oncekey._core.problems import (
    DETAIL_CHARS_MAX,
    FIELD_CHARS_MAX,
    FIELDS_MAX,
    MEANINGS,
    Kind,
    Problem,
    as_json,
    docs_link,
    json_bytes,
    reply_headers,
)


def body_of(problem: Problem, status: int = 409) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(json_bytes(as_json(problem, status)))
    return body


def test_a_refusal_as_problem_json() -> None:
    problem = Problem(
        Kind.IN_FLIGHT, "A request with this key is running.", retryable=True, retry_after_s=2.25
    )

    assert body_of(problem) == {
        "type": "urn:oncekey:problem:in-flight",
        "title": "The first request is still running",
        "status": 409,
        "detail": "A request with this key is running.",
        "advice": "Wait, then send the same request with the same key.",
        "retryable": True,
        "retry_after_s": 2.25,
    }
    assert reply_headers(problem) == [(b"cache-control", b"no-store"), (b"retry-after", b"3")]


def test_a_mismatch_names_fields() -> None:
    body = body_of(Problem(Kind.MISMATCH, "It differs.", fields=("amount", "currency")), 422)

    assert body["fields"] == ["amount", "currency"]
    assert body["retryable"] is False
    assert "retry_after_s" not in body


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_has_a_title_a_status_and_advice(kind: Kind) -> None:
    meaning = MEANINGS[kind]

    assert 400 <= meaning.status <= 599
    assert not meaning.title.endswith(".")
    assert meaning.advice.endswith(".")
    assert docs_link(kind, "/help") == f"/help#{kind.value}"


def test_titles_tell_the_kinds_apart() -> None:
    assert len({meaning.title for meaning in MEANINGS.values()}) == len(Kind)


@pytest.mark.parametrize(
    ("retry_after_s", "header", "member"),
    [
        (0.0, b"1", 0.0),
        (-3.0, b"1", 0.0),
        (0.2, b"1", 0.2),
        (1.0, b"1", 1.0),
        (1.0001, b"2", 1.0),
        (29.5, b"30", 29.5),
        (float("inf"), b"3600", RETRY_AFTER_S_MAX),
    ],
)
def test_retry_after_is_whole_seconds_rounded_up(
    retry_after_s: float, header: bytes, member: float
) -> None:
    """RFC 9110 knows only whole seconds; 0 would make clients retry in a loop."""
    problem = Problem(Kind.IN_FLIGHT, "", retryable=True, retry_after_s=retry_after_s)
    assert dict(reply_headers(problem))[b"retry-after"] == header
    assert body_of(problem)["retry_after_s"] == member


@pytest.mark.parametrize("retry_after_s", [None, float("nan")])
def test_without_a_time_there_is_no_retry_after(retry_after_s: float | None) -> None:
    problem = Problem(Kind.IN_FLIGHT, "", retry_after_s=retry_after_s)
    assert b"retry-after" not in dict(reply_headers(problem))
    assert "retry_after_s" not in body_of(problem)


def test_the_resource_is_named_where_its_answer_was_not_kept() -> None:
    problem = Problem(Kind.ANSWER_NOT_KEPT, "", location=b"/orders/7")
    assert dict(reply_headers(problem))[b"location"] == b"/orders/7"


@pytest.mark.parametrize("location", [b"/a\r\nset-cookie: x=1", b"/a\n", b"/a\0"])
def test_a_location_that_would_break_the_message_is_left_out(location: bytes) -> None:
    assert b"location" not in dict(
        reply_headers(Problem(Kind.ANSWER_NOT_KEPT, "", location=location))
    )


def test_a_full_docs_url_is_linked() -> None:
    """The draft's section 2.7: `Link: <…>; rel="describedby"`."""
    lines = dict(reply_headers(Problem(Kind.MISSING_KEY, ""), "https://api.example/idempotency"))
    assert lines[b"link"] == b'<https://api.example/idempotency#missing-key>; rel="describedby"'
    assert b"link" not in dict(reply_headers(Problem(Kind.MISSING_KEY, "")))


ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@given(ANY_TEXT, st.lists(ANY_TEXT, max_size=50))
@example("\ud800", ["\udfff"])
def test_any_text_gives_safe_json(detail: str, fields: list[str]) -> None:
    """Lone surrogates, control characters and HTML included."""
    data = json_bytes(as_json(Problem(Kind.MISMATCH, detail, fields=tuple(fields)), 422))
    assert data.isascii()
    assert not set(data) & set(b"<>&\r\n\0")
    body = json.loads(data)
    json.dumps(body, ensure_ascii=False).encode("utf-8")
    assert len(body["detail"]) <= DETAIL_CHARS_MAX
    assert all(len(name) <= FIELD_CHARS_MAX for name in body.get("fields", []))


def test_text_survives_as_it_is() -> None:
    text = 'Größe <b>&amp;</b> „x“ 😀 \u2028 \\ "'
    assert body_of(Problem(Kind.MISMATCH, text))["detail"] == text


def test_a_refusal_is_small_however_large_the_request_was() -> None:
    """P11."""
    fields = tuple(f"{i}" * 1000 for i in range(10_000))
    problem = Problem(Kind.MISMATCH, "x" * 10**6, fields=fields)
    body = body_of(problem)
    assert len(body["fields"]) == FIELDS_MAX
    assert len(json_bytes(body)) < 6000
