"""Fingerprints (E16, E20-E29): equal for retries, different for other requests."""

import hashlib
import json
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core import fingerprint
from oncekey._core.canonical import canonical_form, parse_pairs
from oncekey._core.fingerprint import (
    FIELD_NAME_CHARS_MAX,
    FIELDS_DIGESTED_MAX,
    LOOKED_INTO_BYTES_MAX,
    VERSION,
    BadBody,
    Comparison,
    Fingerprint,
    compare,
    differing_fields,
    extract_field,
    field_digests,
)

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def of(
    method: str = "POST",
    path: str = "/charges",
    query: bytes | str = b"",
    content_type: str = JSON,
    body: bytes = b'{"amount":100,"currency":"eur"}',
    **options: Any,
) -> Fingerprint:
    outcome = fingerprint.compute(method, path, query, content_type, body, **options)
    assert isinstance(outcome, Fingerprint), outcome
    return outcome


FIRST = of()


# ------------------------------------------------------------------------ what counts


def test_a_fingerprint_names_its_version() -> None:
    assert (FIRST.version, FIRST.newest) == (1, VERSION)
    assert of(content_type=FORM, body=b"a=1").version == VERSION == 2
    assert len(FIRST.digest) == 32


def test_e27_version_1_knows_no_header_that_names_the_operation() -> None:
    named = of(target="Orders.Create")
    assert named.version == 2
    assert named != of(target="Orders.Delete") != FIRST
    assert of(target="Orders.Create", version=1).digest == FIRST.digest


def test_e16_another_method_or_path_is_another_request() -> None:
    assert of(method="PUT") != FIRST
    assert of(path="/refunds") != FIRST


def test_e16_the_concrete_path_counts() -> None:
    one = of(path="/payment_intents/pi_1/confirm", body=b"")
    assert one != of(path="/payment_intents/pi_2/confirm", body=b"")


def test_methods_are_upper_case() -> None:
    assert of(method="post") == FIRST


def test_e20_json_is_compared_by_value() -> None:
    assert of(body=b'{ "currency" : "\\u0065ur", "amount" : 1e2 }') == FIRST
    assert of(body=b'{"amount":"100","currency":"eur"}') != FIRST
    assert of(body=b'{"amount":101,"currency":"eur"}') != FIRST


def test_e20_types_that_end_in_json_are_json() -> None:
    one = of(content_type="application/vnd.api+json", body=b'{"a":1,"b":2}')
    assert one == of(content_type="application/vnd.api+json; v=1", body=b'{"b":2,"a":1.0}')


def test_e21_forms_are_compared_by_their_decoded_pairs() -> None:
    one = of(content_type=FORM, body=b"amount=100&note=two+words")
    assert one == of(content_type=FORM, body=b"amount=%3100&note=two%20words")
    assert one != of(content_type=FORM, body=b"amount=1000&note=two%20words")


def test_p5_e21_the_order_of_form_fields_counts() -> None:
    one = of(content_type=FORM, body=b"from=a&amount=5&to=b")
    assert one != of(content_type=FORM, body=b"from=a&to=b&amount=5")


@pytest.mark.parametrize(
    ("body", "other"),
    [
        (b'{"phone": "+1"}', b'{"phone": " 1"}'),
        (b'{"a": "%41"}', b'{"a": "A"}'),
        (b' [{"a": "b&"}]', b' [{"a": "b&&"}]'),
        (b'{"a": "="}', b'{"a=": ""}'),
    ],
)
def test_p5_e21_json_that_is_called_a_form_counts_as_it_was_sent(body: bytes, other: bytes) -> None:
    assert of(content_type=FORM, body=body) == of(content_type=FORM, body=body)
    assert of(content_type=FORM, body=body) != of(content_type=FORM, body=other)


def test_e22_multipart_forms_are_compared_by_part() -> None:
    def fingerprint_with(boundary: str, content: str) -> Fingerprint:
        head = 'Content-Disposition: form-data; name="a"'
        body = f"--{boundary}\r\n{head}\r\n\r\n{content}\r\n--{boundary}--\r\n"
        content_type = f"multipart/form-data; boundary={boundary}"
        return of(content_type=content_type, body=body.encode())

    assert fingerprint_with("x1", "hello") == fingerprint_with("y2", "hello")
    assert fingerprint_with("x1", "hello") != fingerprint_with("x1", "hellO")


def test_other_bodies_are_compared_by_their_bytes() -> None:
    one = of(content_type="text/csv", body=b"a,b\n1,2\n")
    assert one == of(content_type="text/csv; charset=utf-8", body=b"a,b\n1,2\n")
    assert one != of(content_type="text/csv", body=b"a,b\r\n1,2\r\n")
    assert of(content_type="", body=b'{"a": 1}') != of(content_type="", body=b'{"a":1}')


def test_e23_the_query_counts_but_not_its_order() -> None:
    one = of(query=b"expand=card&limit=1&expand=owner")
    assert one == of(query=b"limit=1&expand=card&expand=owner")
    assert one == of(query="limit=1&expand=%63ard&expand=owner")
    assert one != of(query=b"limit=1&expand=owner&expand=card")
    assert one != of(query=b"expand=card&limit=1")
    assert one != FIRST


def test_e24_only_the_essence_of_the_content_type_counts() -> None:
    assert of(content_type="Application/JSON; charset=utf-8") == FIRST
    assert of(content_type="application/x+json") != FIRST


def test_an_empty_body_is_the_same_whatever_its_type_says() -> None:
    types = ["", JSON, FORM, "multipart/form-data", "text/plain"]
    assert len({of(content_type=content_type, body=b"") for content_type in types}) == 1


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b"{"),
        (JSON, b'{"a":1,"a":1}'),
        (JSON, b'{"a":NaN}'),
        (JSON, b"[" * 100_000),
        (JSON, b"9" * 5000),
        (JSON, b"\xff"),
        (FORM, b"&" * 20_000),
        ("multipart/form-data", b"--x--"),
        ("multipart/form-data; boundary=x", b"--y--"),
    ],
)
def test_a_body_without_a_canonical_form_is_refused(content_type: str, body: bytes) -> None:
    outcome = fingerprint.compute("POST", "/", b"", content_type, body)
    assert isinstance(outcome, BadBody)
    assert outcome.reason.endswith(".")


def test_e11_the_key_itself_can_be_left_out() -> None:
    one = of(body=b'{"amount":1,"key":"a"}', exclude_field="key")
    assert one == of(body=b'{"key":"b","amount":1}', exclude_field="key")
    assert one != of(body=b'{"key":"b","amount":2}', exclude_field="key")
    form = of(content_type=FORM, body=b"key=a&amount=1", exclude_field="key")
    assert form == of(content_type=FORM, body=b"key=b&amount=1", exclude_field="key")
    query = of(query=b"requestId=a&x=1", exclude_parameter="requestId")
    assert query == of(query=b"requestId=b&x=1", exclude_parameter="requestId")
    assert query != of(query=b"requestId=b&x=2", exclude_parameter="requestId")


def test_e11_a_field_is_not_left_out_of_the_query_nor_a_parameter_of_the_body() -> None:
    assert of(query=b"key=a", exclude_field="key") != of(query=b"key=b", exclude_field="key")
    one, other = (of(body=b'{"key":"%b"}' % key, exclude_parameter="key") for key in (b"a", b"b"))
    assert one != other


# --------------------------------------------------------------------- what holds always


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(-1e6, 1e6) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=3), VALUES, min_size=1, max_size=5)


@given(OBJECTS, st.randoms(use_true_random=False))
def test_e20_the_order_of_fields_never_changes_it(
    fields: dict[str, Any], chance: random.Random
) -> None:
    names = list(fields)
    chance.shuffle(names)
    shuffled = json.dumps({name: fields[name] for name in names}, ensure_ascii=False, indent=1)
    assert of(body=json.dumps(fields).encode()) == of(body=shuffled.encode())


@given(OBJECTS, st.data())
def test_p5_changing_any_value_always_changes_it(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(fields)))
    changed = {**fields, name: [fields[name]]}
    missing = {other: value for other, value in fields.items() if other != name}
    found = {of(body=json.dumps(value).encode()) for value in (fields, changed, missing)}
    assert len(found) == 3


@given(st.text("ab0:1-", min_size=1, max_size=10), st.data())
def test_p5_nothing_slides_from_one_part_of_a_request_into_another(
    text: str, data: st.DataObject
) -> None:
    cuts = st.lists(st.integers(0, len(text) - 1), min_size=4, max_size=4).map(sorted)

    def cut(at: list[int]) -> Fingerprint:
        method, path, query, content_type, body = (
            text[start:end] for start, end in pairwise([0, *at, len(text)])
        )
        return of(method, path, query, content_type, body.encode())

    one, other = data.draw(cuts), data.draw(cuts)
    assert (cut(one) == cut(other)) == (one == other)


def test_p5_a_byte_that_moves_between_parts_changes_it() -> None:
    moved = [
        of("POST", "/ab", b"c", "text/x", b"d"),
        of("POST", "/a", b"bc", "text/x", b"d"),
        of("POST", "/abc", b"", "text/x", b"d"),
        of("POST", "/ab", b"", "text/x", b"cd"),
        of("POST", "/ab", b"", "text/xc", b"d"),
        of("POST/", "ab", b"c", "text/x", b"d"),
        of("POST", "/ab?c", b"", "text/x", b"d"),
    ]
    assert len(set(moved)) == len(moved)


def test_paths_of_any_characters_have_fingerprints() -> None:
    assert of(path="/\udcff") != of(path="/\udcfe")


def test_e27_version_1_stays_what_it_is() -> None:
    """Stored records are compared with these: what changes one needs a new version."""

    def digest_of(parts: bytes) -> bytes:
        return hashlib.sha256(parts).digest()

    head = b"21:oncekey/fingerprint/14:POST8:/charges"
    assert FIRST.digest == digest_of(head + b'0:16:application/json{"amount":100,"currency":"eur"}')
    assert of(query=b"b=2&a=1", body=b"").digest == digest_of(head + b"12:1:a1:11:b1:20:")
    assert of(content_type=FORM, body=b"b=2&a=1", version=1).digest == digest_of(
        head + b"0:33:application/x-www-form-urlencoded1:a1:11:b1:2"
    )
    assert of(content_type="text/x", body=b"raw").digest == digest_of(head + b"0:6:text/xraw")


@pytest.mark.parametrize(
    ("content_type", "body", "version"),
    [
        (JSON, b'{"a":[1,2.5,"x",null],"b":1e39,"c":-0.0,"d":1e-400,"e":1e400}', 1),
        (JSON, b'{"a":1e40}', 2),
        (JSON, b'{"a":1%b}' % (b"0" * 40), 2),
        (JSON, b'{"a":"%b"}' % (b"1" * 1000), 1),
        (FORM, b"a=1", 2),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n1\r\n--x--", 1),
        ("text/plain", b"x" * 2_000_000, 1),
        (JSON, b'{"a":"%b"}' % (b"1" * 100_000), 1),
        (JSON, b'{"a":"%b"}' % (b"1" * LOOKED_INTO_BYTES_MAX), 2),
        (FORM, b"a=" + b"1" * LOOKED_INTO_BYTES_MAX, 2),
    ],
)
def test_e27_the_second_version_is_written_only_where_the_first_has_another_form(
    content_type: str, body: bytes, version: int
) -> None:
    made = of(content_type=content_type, body=body)
    assert made.version == version
    earlier = of(content_type=content_type, body=body, version=1)
    assert (made == earlier) == (version == 1)


class Spooled:
    """A body that does not lie in memory."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.size = len(body)

    def chunks(self) -> Iterator[bytes]:
        return (self._body[at : at + 50_000] for at in range(0, self.size, 50_000))


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b'{"a":1,"b":2}'),
        (JSON, b'{"a":"%b"}' % (b"1" * LOOKED_INTO_BYTES_MAX)),
        (FORM, b"a=1&b=2"),
        (FORM, b"a=" + b"1" * LOOKED_INTO_BYTES_MAX),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n%b\r\n--x--" % (b"1" * 2_000_000)),
        ("text/plain", b"x" * 2_000_000),
    ],
)
def test_e25_where_a_body_lies_does_not_matter(content_type: str, body: bytes) -> None:
    spooled = fingerprint.compute("POST", "/charges", b"", content_type, Spooled(body))
    assert spooled == of(content_type=content_type, body=body)


def test_e25_a_long_body_counts_byte_for_byte() -> None:
    long = b'{"a":"%b"}' % (b"1" * LOOKED_INTO_BYTES_MAX)
    assert of(body=long) == of(body=long)
    assert of(body=long) != of(body=long + b" ")
    # A short form and the bytes of its canonical form are not the same form.
    names = b"&".join(b"%b=%b" % (b"n" * 40, b"v" * 62) for _ in range(9_900))
    pairs = canonical_form(parse_pairs(names))
    assert len(names) <= LOOKED_INTO_BYTES_MAX < len(pairs)
    assert of(content_type=FORM, body=pairs) != of(content_type=FORM, body=names)


# --------------------------------------------------------------------------- comparing


FORMED = of(content_type=FORM, body=b"b=2&a=1")
EARLIER = of(content_type=FORM, body=b"b=2&a=1", version=1)


def test_e27_an_earlier_version_is_compared_by_its_own_rules() -> None:
    assert compare(1, EARLIER.digest, EARLIER) is Comparison.SAME
    other = of(content_type=FORM, body=b"b=2&a=2", version=1)
    assert compare(1, other.digest, EARLIER) is Comparison.DIFFERENT
    assert compare(1, EARLIER.digest, FORMED) is Comparison.UNKNOWN_VERSION  # until it is asked for


def test_e27_what_the_second_version_has_another_form_for_is_no_request_of_the_first() -> None:
    assert compare(2, FORMED.digest, FIRST) is Comparison.DIFFERENT
    assert compare(2, FORMED.digest, EARLIER) is Comparison.UNKNOWN_VERSION


def test_e27_another_version_is_neither_a_match_nor_a_mismatch() -> None:
    assert compare(1, FIRST.digest, FIRST) is Comparison.SAME
    assert compare(1, of(body=b"{}").digest, FIRST) is Comparison.DIFFERENT
    assert compare(2, FORMED.digest, FORMED) is Comparison.SAME
    assert compare(VERSION + 1, FIRST.digest, FIRST) is Comparison.UNKNOWN_VERSION
    assert compare(VERSION + 1, b"of another length", FIRST) is Comparison.UNKNOWN_VERSION
    assert compare(1, FIRST.digest[:16], FIRST) is Comparison.DIFFERENT


# ------------------------------------------------------------------------------- fields


def digests(body: bytes, content_type: str = JSON, key: str = "k") -> dict[str, str]:
    return field_digests(content_type, body, key)


def test_differing_fields_are_named_and_nothing_else() -> None:
    stored = digests(b'{"amount":100,"currency":"eur","card":{"n":1},"old":1}')
    now = digests(b'{"card":{"n":2},"amount":1e2,"currency":"usd","new":null}')
    assert differing_fields(stored, now) == ["card", "currency", "new", "old"]
    assert differing_fields(stored, stored) == []


def test_differing_form_fields_are_named() -> None:
    stored = digests(b"amount=100&item=a&item=b&note=x+y", FORM)
    now = digests(b"note=x%20y&item=b&item=a&amount=100", FORM)
    assert differing_fields(stored, now) == ["item"]


def test_p12_field_digests_tell_nothing_without_the_key() -> None:
    body = b'{"amount":100,"tip":100}'
    one, other = digests(body, key="k1"), digests(body, key="k2")
    assert one["amount"] != other["amount"]
    assert one["amount"] != one["tip"]
    assert all(len(digest) == 16 for digest in one.values())
    assert digests(body, key="x" * 255).keys() == {"amount", "tip"}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b"[1]"),
        (JSON, b"{"),
        (JSON, b""),
        (JSON, b'{"a":' * 100_000),
        (FORM, b"a&" * 20_000),
        (FORM, b'{"card": "4242"}'),
        ("text/plain", b"a=1"),
    ],
)
def test_other_bodies_have_no_fields(content_type: str, body: bytes) -> None:
    assert digests(body, content_type) == {}


def many(names: range, changed: str = "") -> dict[str, str]:
    fields = {f"f{number:03}": number for number in names}
    return digests(json.dumps({**fields, **({changed: "x"} if changed else {})}).encode())


def test_p11_only_the_first_fields_by_name_are_kept() -> None:
    assert list(many(range(200))) == [f"f{number:03}" for number in range(FIELDS_DIGESTED_MAX)]


def test_p11_fields_that_were_not_kept_are_not_called_different() -> None:
    stored = many(range(100))
    assert differing_fields(stored, many(range(1, 100))) == ["f000"]
    assert differing_fields(many(range(1, 100)), stored) == ["f000"]
    assert differing_fields(stored, many(range(100), "f063")) == ["f063"]
    assert differing_fields(stored, many(range(100), "f064")) == []
    assert differing_fields(stored, many(range(63))) == ["f063"]


def test_p11_names_that_no_store_should_hold_are_left_out() -> None:
    names = ["x" * FIELD_NAME_CHARS_MAX, "x" * (FIELD_NAME_CHARS_MAX + 1), "\0", "\ud800", "é"]
    body = json.dumps(dict.fromkeys(names, 1)).encode()
    assert list(digests(body)) == ["x" * FIELD_NAME_CHARS_MAX, "é"]


# -------------------------------------------------------------------- a key in a body field


@pytest.mark.parametrize(
    ("content_type", "body", "expected"),
    [
        (JSON, b'{"key":"k-1","a":1}', "k-1"),
        ("application/x+json; v=1", b'{"key":"\\u006b"}', "k"),
        (JSON, b'{"a":{"key":"k"}}', None),
        (JSON, b'{"key":null}', None),
        (JSON, b'["key"]', None),
        (JSON, b"", None),
        (FORM, b"a=1&key=k%2D1", "k-1"),
        (FORM, b"key=", ""),
        (FORM, b"a=1", None),
        (FORM, b"key=%C3%A9", "Ã©"),
        ("text/plain", b'{"key":"k"}', "k"),
        ("", b'\xef\xbb\xbf {"key":"k"}', "k"),
        ("application/octet-stream", b'{"key":null}', None),
        ("text/plain", b'{"a":1,"a":2}', None),
        ("text/plain", b'{"a":', None),
        ("text/plain", b'["key"]', None),
        ("text/plain", b"key=k", None),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\nkey\r\n--x--", None),
        ("multipart/form-data; boundary=x", b"--x--", None),
        ("multipart/form-data; boundary=x", b'--x\r\n\r\n{"key":"k"}\r\n--x--', "k"),
        ("", b"", None),
    ],
)
def test_e11_a_key_is_read_from_a_body_field(
    content_type: str, body: bytes, expected: str | None
) -> None:
    assert extract_field(content_type, body, "key") == expected


@pytest.mark.parametrize(
    ("content_type", "body", "reason"),
    [
        (JSON, b'{"key":17}', "not a string"),
        ("text/plain", b'{"key":17}', "not a string"),
        ("text/plain", b'{"key":"a","key":"b"}', "twice"),
        ("multipart/form-data", b'--x\r\n\r\n{"key":"k"}\r\n--x--', "boundary"),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\n\r\n{"key":"k"}\r\n--x\r\n\r\n{"key":"l"}\r\n--x--',
            "different keys",
        ),
        (JSON, b'{"key":{"a":"b"}}', "not a string"),
        (JSON, b'{"key":false}', "not a string"),
        (JSON, b'{"key":"a","key":"b"}', "twice"),
        (JSON, b"{", "not valid JSON"),
        (FORM, b"key=a&key=a", "twice"),
        (FORM, b"a&" * 20_000, "fields"),
    ],
)
def test_e11_a_body_field_that_cannot_be_a_key_is_refused(
    content_type: str, body: bytes, reason: str
) -> None:
    outcome = extract_field(content_type, body, "key")
    assert isinstance(outcome, BadBody)
    assert reason in outcome.reason
