"""Where keys stand in a request, by every profile."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core import key as keys
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.profiles import PROFILES
from oncekey.client import _key_placement as placement
from oncekey.client._key_placement import KeyChanges, OutgoingRequest, SentRequests
from oncekey.errors import Misuse

KEY = "018bcfe5-6800-7000-8000-000000000000"
JSON = {"content-type": "application/json; charset=utf-8"}
AMZ_JSON = {"content-type": "application/x-amz-json-1.1"}
FORM = {"content-type": "application/x-www-form-urlencoded"}
URL = "https://api.test/orders"


class Lines(dict[str, str]):
    """Header lines that are looked up whatever the case, as those of the libraries are."""

    def get(self, name: str, default: object = None, /) -> str | None:  # type: ignore[override]
        return super().get(name.lower())


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("url", [URL, URL + "?a=1", URL + "?", URL + "?a=1#top"])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (JSON, b' {"a": 1.10, "b": {}}'),
        *((JSON, b"{ }"), (FORM, b"a=1&b=2"), (AMZ_JSON, b'{"a": 1}')),
    ],
)
def test_what_was_put_in_is_found_again_and_makes_no_other_request(
    name: str, url: str, headers: dict[str, str], body: bytes
) -> None:
    profile = PROFILES[name]
    lines = Lines(headers)
    bare = OutgoingRequest("POST", url, lines, body)
    assert placement.read_key(bare, profile) is None

    changes = placement.place_key(bare, profile, KEY)

    assert changes is not None
    lines = Lines(headers | {name.lower(): text for name, text in changes.headers})
    kept = OutgoingRequest("POST", changes.url or url, lines, changes.body or body)
    assert placement.read_key(kept, profile) == KEY
    assert placement.fingerprint(kept, profile) == placement.fingerprint(bare, profile) is not None


@given(
    members=st.dictionaries(
        st.text(max_size=5),
        st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        max_size=4,
    )
)
def test_a_json_body_keeps_every_byte(members: dict[str, float | str]) -> None:
    body = json.dumps(members).encode()

    changes = placement.place_key(OutgoingRequest("POST", URL, JSON, body), PROFILES["square"], KEY)

    assert changes is not None
    assert changes.body is not None
    assert changes.body.endswith(body[1:])
    assert json.loads(changes.body) == {"idempotency_key": KEY, **members}


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (JSON, b""),
        (JSON, b"[1]"),
        (JSON, b"{"),
        ({"content-type": "text/plain"}, b"x"),
        (JSON, None),
        (JSON, b'{"idempotency_key": null}'),
    ],
)
def test_a_body_without_a_place_for_a_key(headers: dict[str, str], body: bytes | None) -> None:
    assert (
        placement.place_key(OutgoingRequest("POST", URL, headers, body), PROFILES["square"], KEY)
        is None
    )


def test_the_draft_s_keys_are_quoted_and_all_others_bare() -> None:
    bare = OutgoingRequest("POST", URL, {}, b"")

    quoted = KeyChanges((("Idempotency-Key", f'"{KEY}"'),))
    assert placement.place_key(bare, PROFILES["ietf"], KEY) == quoted
    assert placement.place_key(bare, PROFILES["ietf"].derive(name="ours"), KEY) == quoted
    assert placement.place_key(bare, PROFILES["stripe"], KEY) == KeyChanges(
        (("Idempotency-Key", KEY),)
    )


@pytest.mark.parametrize("key", ['7"-pipe', "a\\b", '"all"', "a,b"])
def test_what_is_quoted_arrives_as_it_was(key: str) -> None:
    changes = placement.place_key(OutgoingRequest("POST", URL, {}, b""), PROFILES["ietf"], key)
    assert changes is not None
    [(_, line)] = changes.headers
    assert keys.parse([line.encode()]) == key


def test_the_query_keeps_what_it_has() -> None:
    changes = placement.place_key(
        OutgoingRequest("POST", URL + "?a=%20&a=2#top", {}, b""), PROFILES["gcp"], KEY
    )

    assert changes is not None
    assert changes.url is not None
    assert parse_qs(urlsplit(changes.url).query) == {"a": [" ", "2"], "requestId": [KEY]}
    assert changes.url.endswith("#top")


def test_a_key_that_no_server_takes_is_not_sent() -> None:
    with pytest.raises(Misuse, match="placeholder"):
        placement.read_key(
            OutgoingRequest("POST", URL, {"idempotency-key": "null"}, b""), PROFILES["oncekey"]
        )
    with pytest.raises(Misuse, match="not a UUID"):
        placement.valid_key("order-17", PROFILES["azure"])
    with pytest.raises(Misuse, match="longer than 45"):
        placement.valid_key("k" * 46, PROFILES["square"])


@pytest.mark.parametrize("profile", ["oncekey", "square", "gcp"])
def test_a_large_body_is_told_by_its_size_and_not_read(profile: str) -> None:
    def printed(body: bytes) -> Fingerprint | None:
        lines = {"content-type": "application/json"}
        return placement.fingerprint(OutgoingRequest("POST", URL, lines, body), PROFILES[profile])

    size = placement.COMPARED_BYTES_MAX
    assert printed(b"{" * size) is None  # read, and found broken
    assert printed(b"{" * (size + 1)) == printed(b"[" * (size + 1)) is not None
    assert printed(b"{" * (size + 1)) != printed(b"{" * (size + 2))


def test_an_origin_is_scheme_host_and_port() -> None:
    assert placement.origin_of("HTTPS://API.test/a") == placement.origin_of(
        "https://api.test:443/b?c"
    )
    assert placement.origin_of("http://api.test") != placement.origin_of("https://api.test")
    assert placement.origin_of("https://api.test:8443") != placement.origin_of("https://api.test")


@pytest.mark.parametrize("location", ["/", "/there?a=1#b", f"{URL}/1", "https://api.test/?//a"])
def test_a_redirect_that_stays(location: str) -> None:
    assert placement.is_same_origin_redirect(URL, location)


@pytest.mark.parametrize(
    "location",
    [
        *("", "there", "//else.test/", "/\\else.test/", "\\\\else.test", "http://api.test/"),
        *("https://api.test", "https://api.test@else.test/", "https://api.test:444/"),
        *("/\t/else.test/", "/\n/else.test", " /there", "https:/else.test", "https:else.test"),
        *("https://api.test.else.test/", "https:///else.test/", "HTTPS://api.test/"),
    ],
)
def test_a_redirect_that_may_lead_elsewhere(location: str) -> None:
    """What libraries read in different ways is not followed with a key."""
    assert not placement.is_same_origin_redirect(URL, location)


ONE, OTHER = Fingerprint(1, b"1"), Fingerprint(1, b"2")


def test_only_another_request_with_the_same_key_at_the_same_place_is_a_reuse() -> None:
    sent = SentRequests()

    assert not sent.is_different("https://a:443", "k", ONE)
    assert not sent.is_different("https://a:443", "k", ONE)
    assert not sent.is_different("https://b:443", "k", OTHER)
    assert sent.is_different("https://a:443", "k", OTHER)


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    sent = SentRequests(keys_max=2)
    for key in "abc":
        sent.is_different("o", key, ONE)

    assert not sent.is_different("o", "a", OTHER)
    assert sent.is_different("o", "c", OTHER)
