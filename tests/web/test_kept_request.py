"""Requests that are kept: all that a handler needs, nothing by which to act as the client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.errors import CorruptRecord
from oncekey.web._kept_request import (
    HEADER_BYTES_MAX,
    HEADER_LINES_MAX,
    KeptRequest,
    decode,
    encode,
    keep,
)
from oncekey.web._request import Headers, Request

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
LATIN = st.text(st.characters(max_codepoint=255)).map(lambda text: text.encode("latin-1"))


def kept(*lines: tuple[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    return keep(Request("POST", "/pay", b"", Headers(lines)), b"").headers


@given(TEXT, TEXT, LATIN, st.lists(st.tuples(LATIN, LATIN)), st.binary())
def test_what_is_kept_comes_back(
    path: str, root: str, query: bytes, lines: list[tuple[bytes, bytes]], body: bytes
) -> None:
    request = KeptRequest("POST", "https", path, root, query, tuple(lines), body)

    assert decode(encode(request)) == request


@given(st.binary(max_size=200))
def test_nothing_else_is_read(data: bytes) -> None:
    try:
        decoded = decode(data)
    except CorruptRecord:
        return
    assert decode(encode(decoded)) == decoded


def test_a_newer_version_is_not_guessed_at() -> None:
    written = encode(KeptRequest("POST", "http", "/pay", "", b"", (), b"{}"))

    with pytest.raises(CorruptRecord, match="version 2"):
        decode(b"\x02" + written[1:])
    with pytest.raises(CorruptRecord, match="ends within its head"):
        decode(written[:20])


@pytest.mark.parametrize(
    "name",
    [
        *(b"authorization", b"proxy-authorization", b"cookie", b"x-api-key", b"x-auth-token"),
        *(b"x-amz-security-token", b"stripe-signature", b"x-csrf-token", b"x-session", b"x-otp"),
        *(b"x-client-cert", b"x-password", b"idempotency-key", b"x-forwarded-for", b"x-real-ip"),
        *(b"x-amzn-oidc-data", b"x-ms-client-principal", b"x-saml-response", b"dpop", b"referer"),
        *(b"connection", b"transfer-encoding", b"content-length", b"accept-encoding"),
    ],
)
def test_p12_headers_that_may_be_secrets_are_left_out(name: bytes) -> None:
    assert kept((name, b"hunter2")) == ()


@pytest.mark.parametrize(
    "content", [b"Bearer hunter2", b"basic aHVudGVyMg==", b"eyJhbGciOiJub25lIn0.e30."]
)
def test_p12_what_looks_like_a_credential_is_left_out_under_any_name(content: bytes) -> None:
    assert kept((b"x-on-behalf-of", content)) == ()


@pytest.mark.parametrize(
    "name", [b"content-type", b"accept", b"accept-language", b"host", b"x-currency", b"traceparent"]
)
def test_headers_that_a_handler_reads_are_kept(name: bytes) -> None:
    assert kept((name, b"value")) == ((name, b"value"),)


def test_p11_headers_are_bounded_and_the_body_can_still_be_read() -> None:
    many = [(b"x-%d" % n, b"v") for n in range(100)]
    form, coding = (b"content-type", b"application/json"), (b"content-encoding", b"gzip")

    assert len(kept(*many)) == HEADER_LINES_MAX
    assert kept(*many, form, coding)[:2] == (form, coding)
    assert kept((b"x-large", b"v" * HEADER_BYTES_MAX), form, coding) == (form, coding)


def test_the_scheme_is_kept_whichever_server_brought_it() -> None:
    def scheme(**scope: str) -> str:
        return keep(Request("POST", "/", b"", Headers(()), scope), b"").scheme

    assert scheme(scheme="https") == "https"
    assert scheme(**{"wsgi.url_scheme": "https"}) == "https"
    assert scheme() == "http"
