"""Keys that travel in bodies, in every form (E11): no body that holds one runs without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncekey import Policy
from tests.web.uploads import FORMS, Form, form_of

ORDER = b'{"idempotency_key": "k-1", "amount": 5}'
FIELDS = (
    b'--b\r\nContent-Disposition: form-data; name="idempotency_key"\r\n\r\nk-1\r\n'
    b'--b\r\nContent-Disposition: form-data; name="amount"\r\n\r\n5\r\n--b--\r\n'
)
JSON_PART = (
    b'--b\r\nContent-Disposition: form-data; name="request"\r\n'
    b"Content-Type: application/json\r\n\r\n" + ORDER + b"\r\n"
    b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nbytes\r\n--b--\r\n'
)
LONG_PART = JSON_PART.replace(b"bytes", b"bytes" * 400_000)
MULTIPART = "multipart/form-data; boundary=b"


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[Form]:
    with form_of(request.param, Policy(), profile="square") as form:
        yield form


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", ORDER),
        ("application/json", ORDER + b" " * 100_000),
        ("text/plain", ORDER),
        ("application/octet-stream", b" \r\n" + ORDER),
        ("", ORDER),
        ("application/x-www-form-urlencoded", ORDER),
        (MULTIPART, FIELDS),
        (MULTIPART, JSON_PART),
        (MULTIPART, LONG_PART),
    ],
)
def test_e11_a_key_is_found_whatever_the_body_is_called(
    form: Form, content_type: str, body: bytes
) -> None:
    first, again = (form.ask(None, body, content_type) for _ in range(2))
    assert (first.status, first.replayed) == (201, False)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{"amount": 5}'),
        ("text/plain", b'{"amount": 5'),
        ("text/plain", b"idempotency_key=k-1"),
        ("application/x-www-form-urlencoded", b'{"amount": 5}'),
        ("application/x-www-form-urlencoded", b"{amount}=5"),
        ("image/png", ORDER),
        ("application/octet-stream", b"\x00" * 2_000_000),
        (MULTIPART, b"--b--\r\n"),
        (MULTIPART, LONG_PART.replace(b"idempotency_key", b"another")),
    ],
)
def test_e11_what_brings_none_runs_each_time(form: Form, content_type: str, body: bytes) -> None:
    for _ in range(2):
        reply = form.ask(None, body, content_type)
        assert (reply.status, reply.replayed) == (201, False)


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", b'{"idempotency_key":"a","idempotency_key":"b"}', 400),
        ("application/json", ORDER + b" " * 1_100_000, 413),
        ("text/plain", ORDER.decode().encode("utf-16"), 400),
        ("", ORDER.decode().encode("utf-32-be"), 400),
        ("text/plain", b'{"\\u0069dempotency_key": "k-1", "amount": NaN}', 400),
        ("text/plain", '{"\\u0069dempotency_key": "k-1"}'.encode("utf-16"), 400),
        ("application/x-www-form-urlencoded", ORDER.replace(b"5", b"NaN"), 400),
        (MULTIPART, JSON_PART.replace(b"5}", b"NaN}"), 400),
        (MULTIPART, LONG_PART[:-6], 400),
    ],
)
def test_e11_what_cannot_be_told_is_refused(
    form: Form, content_type: str, body: bytes, status: int
) -> None:
    assert form.ask(None, body, content_type).status == status
