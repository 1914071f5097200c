"""Keys: reading them (E1-E10), refusing them with a reason, and the ids made from them."""

import hashlib
import re
from collections.abc import Callable
from typing import cast

import http_sf
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncekey._core.key import CHARS_MAX, BadKey, check, derive, parse, record_id, short_hash

UUID = "8e03978e-40d5-43e8-bc93-6894a57f9324"
VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
KEYS = st.text(VISIBLE, min_size=1, max_size=CHARS_MAX).filter(
    lambda key: not isinstance(check(key), BadKey)
)


def quote(key: str) -> bytes:
    return b'"' + key.replace("\\", "\\\\").replace('"', '\\"').encode() + b'"'


def refusal(value: bytes) -> str:
    """The reason why this header value is refused."""
    outcome = parse([value])
    assert isinstance(outcome, BadKey), f"{value!r} was accepted"
    return outcome.reason


# ------------------------------------------------------------------------------ reading


@pytest.mark.parametrize(
    "key",
    [
        UUID,
        UUID.upper(),
        f"stripe-node-retry-{UUID}",
        f"{{{UUID}}}",
        "KG5LxwFBepaKHyUD",
        "order:123",
        "a/b+c=",
        "x;y=1",
        "a\\b",
        "1",
        "0",
        "nullable",
        "test",
        "{user}:17",
        "$abc",
    ],
)
def test_what_clients_send_is_taken_as_it_is(key: str) -> None:
    assert parse([key.encode()]) == key


@pytest.mark.parametrize("blanks", [b" ", b"\t", b" \t  "])
@pytest.mark.parametrize("value", [UUID.encode(), quote(UUID)])
def test_e1_blanks_around_a_key_are_not_part_of_it(value: bytes, blanks: bytes) -> None:
    assert parse([blanks + value]) == parse([value + blanks]) == parse([value]) == UUID


@pytest.mark.parametrize("lines", [[b"a", b"b"], [b"a", b"a"], [b'"a"', b"a"], [b"a", b""], []])
def test_e2_only_one_header_line_is_taken_even_if_they_agree(lines: list[bytes]) -> None:
    outcome = parse(lines)
    assert isinstance(outcome, BadKey)
    assert "exactly one" in outcome.reason


@pytest.mark.parametrize("value", [b"a,b", b"a, b", b"a,a", b",", b"a,", b'"a","b"', b'"a", "a"'])
def test_e2_lines_that_a_server_joined_are_refused(value: bytes) -> None:
    assert "exactly one key" in refusal(value)


def test_e2_a_comma_within_quotes_belongs_to_the_key() -> None:
    assert parse([b'"a,b"']) == "a,b"


@pytest.mark.parametrize("value", [b"", b" ", b"\t", b'""', b' "" '])
def test_e3_an_empty_key_is_refused(value: bytes) -> None:
    assert "empty" in refusal(value)


@given(KEYS)
def test_e4_quoted_and_bare_are_the_same_key(key: str) -> None:
    assert parse([quote(key)]) == key
    if not set(key) & set('",'):
        assert parse([key.encode()]) == key


@pytest.mark.parametrize("value", [b'"a";p=1', b'"a" ;p', b'"a";', b'"a\\"b";p="c"'])
def test_e4_parameters_are_refused(value: bytes) -> None:
    assert "parameters" in refusal(value)


@pytest.mark.parametrize(
    "value", [b'"', b'"a', b'a"', b'"a"b', b'a"b"', b'"a\\"', b'"a\\b"', b'"a"b"', b'"a" b']
)
def test_e4_quotes_that_do_not_match_are_refused(value: bytes) -> None:
    assert "not quoted correctly" in refusal(value)


@pytest.mark.parametrize("value", ["é".encode(), b"\xe9", "ключ".encode(), b'"\xe9"', b"a\xa0"])
def test_e5_only_ascii_is_taken(value: bytes) -> None:
    assert "not ASCII" in refusal(value)


@pytest.mark.parametrize("value", [b"a b", b'"a b"', b'" a"', b'"a "'])
def test_e5_a_space_is_not_part_of_a_key(value: bytes) -> None:
    assert "space" in refusal(value)


@pytest.mark.parametrize("code", [*range(0x20), 0x7F])
@pytest.mark.parametrize("form", [b"a%bb", b'"a%bb"', b'"%b"'])
def test_e6_control_characters_are_refused_and_not_repeated(form: bytes, code: int) -> None:
    reason = refusal(form % bytes([code]))
    assert "control characters" in reason
    assert reason.isprintable()


@pytest.mark.parametrize("value", [b"a\r\n b", b"a\r\n\tb", b"a\n b", b"a\r b"])
def test_e7_folded_lines_are_refused(value: bytes) -> None:
    assert "control characters" in refusal(value)


@pytest.mark.parametrize("make", [str.encode, quote])
def test_e8_keys_have_at_most_255_characters_and_are_never_cut(
    make: Callable[[str], bytes],
) -> None:
    assert parse([make("x" * 255)]) == "x" * 255
    assert "longer than 255" in refusal(make("x" * 256))
    assert "longer than 255" in refusal(make("x" * 65_536))


def test_e8_the_limit_counts_the_key_without_quotes_and_escapes() -> None:
    assert parse([quote('"' * 255)]) == '"' * 255
    assert "longer than 255" in refusal(quote('"' * 256))


def test_e9_keys_are_case_sensitive() -> None:
    assert parse([b"Key"]) == "Key" != parse([b"key"])
    assert record_id("t", None, "Key") != record_id("t", None, "key")


def test_e10_short_keys_are_taken_unless_a_minimum_is_set() -> None:
    assert parse([b"7"]) == "7"
    assert parse([b"x" * 20], chars_min=20) == "x" * 20
    for value in (b"x" * 19, quote("x" * 19), b"{" + b"x" * 18):
        outcome = parse([value], chars_min=20)
        assert isinstance(outcome, BadKey)
        assert "shorter than 20" in outcome.reason


# ------------------------------------------------------------------------- placeholders


@pytest.mark.parametrize(
    ("value", "mistake"),
    [
        ("null", "not set"),
        ("NULL", "not set"),
        ("undefined", "not set"),
        ("None", "not set"),
        ("nil", "not set"),
        ("<nil>", "not set"),
        ("(null)", "not set"),
        ("NaN", "no number"),
        ("true", "yes-or-no"),
        ("False", "yes-or-no"),
        ("[object Object]", "object was turned into text"),
        ("[object Promise]", "awaited"),
        ("00000000-0000-0000-0000-000000000000", "never filled in"),
        ("{00000000-0000-0000-0000-000000000000}", "never filled in"),
        ("00000000000000000000000000000000", "never filled in"),
        ("FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", "never filled in"),
        ("ffffffffffffffffffffffffffffffff", "never filled in"),
        ("{{key}}", "template"),
        ("{{$guid}}", "template"),
        ("order-{{order.id}}", "template"),
        ("${IDEMPOTENCY_KEY}", "template"),
        ("$(uuidgen)", "template"),
        ("$IDEMPOTENCY_KEY", "template"),
        ("{idempotencyKey}", "template"),
        ("<your-key>", "template"),
        ("%s", "template"),
        ("%(key)s", "template"),
    ],
)
def test_placeholders_are_refused_with_the_likely_mistake(value: str, mistake: str) -> None:
    assert mistake in refusal(value.encode())
    assert mistake in refusal(quote(value))
    outcome = check(value)
    assert isinstance(outcome, BadKey)
    assert mistake in outcome.reason


# ------------------------------------------------------------------------ what holds always


@given(st.binary(max_size=40) | st.text('a\\", ;\t', max_size=12).map(str.encode))
@example(b'"a\\')
def test_whatever_is_sent_gives_a_key_or_a_printable_reason(value: bytes) -> None:
    outcome = parse([value])
    if isinstance(outcome, BadKey):
        assert outcome.reason.isprintable()
        assert outcome.reason.endswith(".")
    else:
        assert re.fullmatch(r"[!-~]{1,255}", outcome)
        assert parse([quote(outcome)]) == outcome


def structured_string(value: bytes) -> str | None:
    """What an independent parser reads, where it is a string without parameters."""
    try:
        item = cast("tuple[object, dict[str, object]]", http_sf.parse(value, tltype="item"))
    except http_sf.StructuredFieldError:
        return None
    return item[0] if isinstance(item[0], str) and not item[1] else None


@given(st.text('ab\\", ;=é\x00', max_size=12).map(lambda text: b'"' + text.encode() + b'"'))
def test_quoted_keys_agree_with_a_structured_field_parser(value: bytes) -> None:
    text = structured_string(value)
    expected = None if text is None else check(text)
    if isinstance(expected, str):
        assert parse([value]) == expected
    else:
        assert isinstance(parse([value]), BadKey)


@given(KEYS)
def test_a_key_from_elsewhere_follows_the_same_rules(key: str) -> None:
    assert check(key) == key
    for broken in (f" {key}", f"{key}\n", f"{key}\x00", f"{key}é", ""):
        assert isinstance(check(broken), BadKey)


def test_a_key_from_elsewhere_is_not_unquoted() -> None:
    assert check('"a"') == '"a"'


# ---------------------------------------------------------------------------------- ids

PARTS = st.text(st.characters(), max_size=6) | st.sampled_from(["", "-", "0:", "1:a", "\ud800"])


@given(
    st.tuples(PARTS, st.none() | PARTS, PARTS),
    st.tuples(PARTS, st.none() | PARTS, PARTS),
)
def test_p5_different_scopes_and_keys_have_different_record_ids(
    one: tuple[str, str | None, str], other: tuple[str, str | None, str]
) -> None:
    assert (record_id(*one) == record_id(*other)) == (one == other)


def test_p5_nothing_slides_from_one_part_into_the_next() -> None:
    splits = [("ab", "c", "d"), ("a", "bc", "d"), ("a", "b", "cd"), ("abcd", "", "")]
    assert len({record_id(*split) for split in splits}) == len(splits)


def test_p5_a_key_for_the_whole_tenant_is_not_one_for_the_nameless_operation() -> None:
    assert record_id("t", None, "k") != record_id("t", "", "k")


def test_record_ids_stay_what_they_are() -> None:
    """Stored records are found by these: other bytes here would lose every one of them."""
    assert record_id("acct_1", "POST /charges", "k").hex() == (
        hashlib.sha256(b"16:oncekey/record/16:acct_113:POST /charges1:k").hexdigest()
    )
    assert record_id("acct_1", None, "k").hex() == (
        hashlib.sha256(b"16:oncekey/record/16:acct_1-1:k").hexdigest()
    )


def test_derived_keys_stay_what_they_are() -> None:
    digest = hashlib.sha256(b"13:oncekey/key/13:a b").hexdigest()
    assert derive("a b") == f"sha256:{digest}"


def test_p12_logs_show_a_short_hash_that_is_no_part_of_a_record_id() -> None:
    assert re.fullmatch(r"[0-9a-f]{12}", short_hash(UUID))
    assert short_hash("a") != short_hash("b")
    assert short_hash(UUID) not in record_id("", None, UUID).hex()
    assert short_hash("k") == hashlib.sha256(b"15:oncekey/short/11:k").hexdigest()[:12]


# ----------------------------------------------------------------------------------- derived


@pytest.mark.parametrize("name", ["order-17", "a" * 255, "%3Cmsg@host%3E", "1"])
def test_a_name_that_can_be_a_key_is_one(name: str) -> None:
    assert derive(name) == name


@pytest.mark.parametrize("name", ["a" * 256, "two words", "größe", "\0", "\ud800", "tab\t"])
def test_any_other_name_becomes_a_key_by_its_digest(name: str) -> None:
    derived = derive(name)
    assert isinstance(derived, str)
    assert check(derived) == derived
    assert derived != derive(name + "!")


def test_p5_nobody_can_choose_the_digest_of_another_name() -> None:
    derived = derive("two words")
    assert isinstance(derived, str)
    assert derive(derived) != derived


@pytest.mark.parametrize("name", ["", " ", "\n", "null", "None", "undefined", "{order}"])
def test_what_names_nothing_gives_no_key(name: str) -> None:
    assert isinstance(derive(name), BadKey)
