"""Which headers are kept, and what first answers and replays carry (E52-E56, E61-E63)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.key import BadKey, check, parse
from oncekey._core.policy import Policy
from oncekey._core.profiles import PROFILES, Profile
from oncekey._core.record import Answer
from oncekey._core.response_headers import (
    first_headers,
    kept_headers,
    replay_headers,
    says_transient,
)

ONCEKEY = PROFILES["oncekey"]
STRIPE = PROFILES["stripe"]
ADYEN = PROFILES["adyen"]
AZURE = PROFILES["azure"]
EXPIRES = 784_111_777.0
EXPIRES_DATE = b"Sun, 06 Nov 1994 08:49:37 GMT"
Lines = Sequence[tuple[bytes, bytes]]


def headers_to_keep(
    *lines: tuple[bytes, bytes], only: list[str] | None = None, profile: Profile = ONCEKEY
) -> Lines:
    return kept_headers(lines, Policy(headers_kept=only).settled(), profile)


def replay(
    *lines: tuple[bytes, bytes],
    status: int = 201,
    body: bytes = b"{}",
    profile: Profile = ONCEKEY,
    expires: float = EXPIRES,
) -> Lines:
    return replay_headers(Answer(status, lines, body), profile, "key-1", expires)


def first(
    *lines: tuple[bytes, bytes],
    status: int = 201,
    body: bytes | None = b"{}",
    profile: Profile = ONCEKEY,
    expires: float | None = EXPIRES,
) -> Lines:
    return first_headers(Answer(status, lines, body), profile, "key-1", expires)


def values(lines: Lines, name: bytes) -> list[bytes]:
    return [value for each, value in lines if each == name]


# ---------------------------------------------------------------------------------- kept


@pytest.mark.parametrize(
    "name",
    [
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "TE",
        "Trailer",
        "Transfer-Encoding",
        "Upgrade",
        "Date",
        "Age",
        "Content-Length",
        "traceparent",
    ],
)
def test_e52_what_belongs_to_one_message_is_not_kept(name: str) -> None:
    assert headers_to_keep((name.encode(), b"1")) == ()
    assert headers_to_keep((name.encode(), b"1"), only=[name]) == ()


def test_e52_headers_that_connection_names_are_hop_by_hop_too() -> None:
    lines = headers_to_keep(
        (b"X-Hop", b"1"),
        (b"Connection", b"close , X-Hop"),
        (b"x-other", b"2"),
        (b"connection", b"x-late"),
        (b"x-late", b"3"),
        (b"x-end", b"4"),
    )
    assert lines == ((b"x-other", b"2"), (b"x-end", b"4"))


@pytest.mark.parametrize(
    "name",
    [
        "Set-Cookie",
        "Set-Cookie2",
        "WWW-Authenticate",
        "Proxy-Authenticate",
        "Authorization",
        "Proxy-Authorization",
        "Authentication-Info",
        "X-CSRF-Token",
        "X-CSRFToken",
        "X-XSRF-TOKEN",
        "csrf-token",
    ],
)
def test_e53_secrets_are_not_kept(name: str) -> None:
    """P12."""
    assert headers_to_keep((name.encode(), b"secret")) == ()


@pytest.mark.parametrize("name", ["WWW-Authenticate", "Authorization", "X-CSRF-Token"])
def test_e53_no_list_brings_secrets_back(name: str) -> None:
    assert headers_to_keep((name.encode(), b"secret"), only=[name]) == ()


def test_e53_cookies_are_kept_if_they_are_named_line_by_line() -> None:
    cookies = (
        (b"set-cookie", b"a=1; Expires=Sun, 06 Nov 1994 08:49:37 GMT"),
        (b"set-cookie", b"b=2"),
    )
    assert headers_to_keep(*cookies, only=["Set-Cookie"]) == cookies
    assert headers_to_keep(*cookies, only=["Location"]) == ()


@pytest.mark.parametrize(
    "name",
    [
        b"location",
        b"etag",
        b"link",
        b"content-type",
        b"content-encoding",
        b"content-language",
        b"vary",
        b"cache-control",
        b"x-anything",
    ],
)
def test_e54_what_is_part_of_the_result_is_kept(name: bytes) -> None:
    assert headers_to_keep((name, b"value")) == ((name, b"value"),)


def test_e54_lines_stay_lines_in_their_order() -> None:
    lines = ((b"link", b"<a>"), (b"vary", b"x"), (b"link", b"<b>, <c>"), (b"x-empty", b""))
    assert headers_to_keep(*lines) == lines


def test_names_are_kept_in_lower_case_and_values_as_they_are() -> None:
    assert headers_to_keep((b"X-Thing", b"\xfc  Mixed")) == ((b"x-thing", b"\xfc  Mixed"),)


def test_p3_blanks_around_a_value_are_no_part_of_it() -> None:
    """Some servers refuse to send them: no retry would be answered."""
    assert headers_to_keep((b"x-note", b" \tfragile \t"), (b"x-blank", b"  ")) == (
        (b"x-note", b"fragile"),
        (b"x-blank", b""),
    )


def test_a_list_of_names_narrows_what_is_kept_but_the_body_stays_readable() -> None:
    lines = headers_to_keep(
        (b"content-type", b"text/csv"),
        (b"content-encoding", b"gzip"),
        (b"Location", b"/orders/7"),
        (b"x-other", b"1"),
        only=["location"],
    )
    assert [name for name, _ in lines] == [b"content-type", b"content-encoding", b"location"]


@pytest.mark.parametrize(
    "line",
    [
        (b"x bad", b"1"),
        (b"x-bad:", b"1"),
        (b"", b"1"),
        (b"x-bad\r\nx-evil", b"1"),
        (b"x-bad\0", b"1"),
        (b"x-b\xc3\xa4d", b"1"),
        (b"x-ok", b"1\r\nset-cookie: a=1"),
        (b"x-ok", b"a\x01b"),  # servers refuse to send these, some of them all
        (b"x-ok", b"a\x7fb"),
        (b"x-ok", b"1\n"),
        (b"x-ok", b"\x00"),
        (b"x" * 70_000, b"no record can hold it, and the handler has run"),
    ],
)
def test_lines_that_would_break_a_replay_are_not_kept(line: tuple[bytes, bytes]) -> None:
    assert headers_to_keep(line, (b"etag", b"1")) == ((b"etag", b"1"),)


def test_nobody_but_the_profile_says_that_an_answer_is_a_replay() -> None:
    """A handler that passes on another service's answer may pass on its marker as well."""
    forged = (
        (b"Idempotent-Replayed", b"true"),
        (b"Idempotency-Key", b"theirs"),
        (b"idempotency-expires", b"never"),
        (b"original-request", b"req_theirs"),
    )
    assert headers_to_keep(*forged) == ()
    assert not values(first(*forged), b"Idempotent-Replayed")
    assert values(first(*forged), b"idempotency-key") == [b"key-1"]
    assert values(replay(*forged), b"idempotent-replayed") == [b"true"]


# -------------------------------------------------------------------------------- replays


def test_e52_a_replay_has_its_length_counted_and_may_not_be_stored() -> None:
    lines = replay(
        (b"content-type", b"application/json"), (b"content-length", b"99"), body=b"12345"
    )
    assert values(lines, b"content-length") == [b"5"]
    assert values(lines, b"cache-control") == [b"no-store"]
    assert not values(lines, b"age")
    assert not values(lines, b"date"), "the server adds a fresh one"


def test_e52_what_the_handler_said_about_caching_stays() -> None:
    lines = replay((b"cache-control", b"private"))
    assert values(lines, b"cache-control") == [b"private"]


def test_e55_a_replay_names_the_first_request_but_not_as_its_own() -> None:
    lines = replay((b"request-id", b"req_1"), profile=STRIPE)
    assert values(lines, b"original-request") == [b"req_1"]
    assert not values(lines, b"request-id"), "whoever numbers exchanges adds a new one"


def test_e55_on_the_first_answer_both_ids_are_equal() -> None:
    """As Stripe's answers have it."""
    lines = first((b"Request-Id", b"req_1"), profile=STRIPE)
    assert values(lines, b"Request-Id") == values(lines, b"original-request") == [b"req_1"]


def test_e55_profiles_without_that_header_only_drop_the_old_id() -> None:
    quiet = ONCEKEY.derive(original_request_header=None)
    lines = replay((b"x-request-id", b"1"), profile=quiet)
    assert b"1" not in [value for _, value in lines]


def test_e56_a_replay_is_marked_and_says_whose_it_is_and_how_long() -> None:
    lines = replay((b"location", b"/orders/7"), (b"etag", b'"1"'))
    assert lines == [
        (b"location", b"/orders/7"),
        (b"etag", b'"1"'),
        (b"content-length", b"2"),
        (b"idempotency-key", b"key-1"),
        (b"idempotency-expires", EXPIRES_DATE),
        (b"idempotent-replayed", b"true"),
        (b"cache-control", b"no-store"),
    ]


def test_e56_the_first_answer_is_not_marked() -> None:
    lines = first((b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"), (b"date", EXPIRES_DATE))
    assert lines == [
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"date", EXPIRES_DATE),
        (b"content-length", b"2"),
        (b"idempotency-key", b"key-1"),
        (b"idempotency-expires", EXPIRES_DATE),
    ]


def test_e56_every_name_can_be_changed_or_left_out() -> None:
    own = ONCEKEY.derive(
        replay_marker=("x-idempotency-replayed", "yes"), key_echo=None, expiry_header="x-expires"
    )
    lines = replay(profile=own)
    assert values(lines, b"x-idempotency-replayed") == [b"yes"]
    assert values(lines, b"x-expires") == [EXPIRES_DATE]
    assert not values(lines, b"idempotency-key")
    assert not values(replay(profile=own.derive(replay_marker=None)), b"x-idempotency-replayed")


def test_without_an_expiry_none_is_claimed() -> None:
    assert not values(first(expires=None), b"idempotency-expires")


VISIBLE = "".join(map(chr, range(0x21, 0x7F)))


@given(
    st.text(VISIBLE, min_size=1, max_size=255).filter(lambda k: not isinstance(check(k), BadKey))
)
def test_e56_the_echoed_key_reads_back_as_the_key(key: str) -> None:
    lines = first_headers(Answer(200), ONCEKEY, key, EXPIRES)
    assert parse(values(lines, b"idempotency-key")) == key


# ------------------------------------------------------------------------------- statuses


@pytest.mark.parametrize("status", [100, 102, 103])
def test_e61_interim_statuses_have_no_length(status: int) -> None:
    assert not values(first(status=status, body=b""), b"content-length")


@pytest.mark.parametrize("status", [301, 302, 303])
def test_e62_a_redirect_is_replayed_with_its_location(status: int) -> None:
    location = (b"location", b"/orders/7")
    assert location in replay(*headers_to_keep(location), status=status, body=b"")


@pytest.mark.parametrize("status", [204, 304])
def test_e63_statuses_without_content_have_no_length(status: int) -> None:
    """RFC 9110, section 8.6: a 204 must not have one; a 304's would be that of another answer."""
    assert not values(replay((b"content-length", b"0"), status=status, body=b""), b"content-length")


@pytest.mark.parametrize("status", [200, 201, 205])
def test_e63_an_empty_body_has_the_length_0(status: int) -> None:
    assert values(replay(status=status, body=b""), b"content-length") == [b"0"]


def test_e52_a_buffered_answer_has_a_length_and_no_chunks() -> None:
    """RFC 9112, section 6.2: a message with both is an attack, or taken for one."""
    lines = first((b"Transfer-Encoding", b"chunked"), body=b"12345")
    assert not values(lines, b"Transfer-Encoding")
    assert values(lines, b"content-length") == [b"5"]


def test_an_answer_that_streams_keeps_the_length_that_its_handler_gave() -> None:
    lines = first((b"content-length", b"9000000"), body=None)
    assert values(lines, b"content-length") == [b"9000000"]
    assert not values(first(body=None), b"content-length")


# ------------------------------------------------------------------- profiles' own headers


@pytest.mark.parametrize(("status", "says"), [(402, [b"false"]), (500, [b"false"]), (200, [])])
def test_stripe_libraries_do_not_retry_errors_that_are_kept(status: int, says: list[bytes]) -> None:
    """stripe-python and stripe-node stop at `Stripe-Should-Retry: false`, also for 409 and 5xx."""
    for lines in (
        replay(status=status, profile=STRIPE),
        first(status=status, profile=STRIPE),
    ):
        assert values(lines, b"stripe-should-retry") == says


def test_an_error_that_was_not_kept_may_say_itself_whether_to_retry() -> None:
    lines = first((b"stripe-should-retry", b"true"), status=429, profile=STRIPE, expires=None)
    assert values(lines, b"stripe-should-retry") == [b"true"]


def test_a_kept_error_says_false_whatever_its_handler_said() -> None:
    lines = first((b"Stripe-Should-Retry", b"true"), status=500, profile=STRIPE)
    assert [v for n, v in lines if n.lower() == b"stripe-should-retry"] == [b"false"]


def test_azure_says_that_a_repeated_request_was_accepted() -> None:
    """OASIS: Repeatability-Result on the answer to a repeatable request, first or repeated."""
    assert values(first(profile=AZURE), b"repeatability-result") == [b"accepted"]
    assert values(replay(profile=AZURE), b"repeatability-result") == [b"accepted"]


@pytest.mark.parametrize(
    ("line", "transient"),
    [
        ((b"Transient-Error", b"true"), True),
        ((b"transient-error", b" True"), True),
        ((b"transient-error", b"false"), False),
        ((b"x-other", b"true"), False),
    ],
)
def test_adyens_handlers_mark_what_is_not_to_be_kept(
    line: tuple[bytes, bytes], transient: bool
) -> None:
    assert says_transient([line], ADYEN) is transient
    assert says_transient([line], ONCEKEY) is False
    assert line in first(line, status=500, profile=ADYEN, expires=None), "the client learns it too"
