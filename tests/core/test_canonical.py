"""Canonical JSON (E20): by value, and never looser."""

import json
import random
import re
import time
import tracemalloc
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncekey._core.canonical import (
    SHORT_BYTES_MAX,
    BadBody,
    canonical_json,
    essence,
    is_json,
    json_member,
    json_members,
    parse_json,
)
from oncekey._core.long_json import TURN

LONG = b" " * (SHORT_BYTES_MAX + 1)
"""Behind a text it changes nothing but the way in which that is read."""


def canonical(text: str) -> bytes:
    """The canonical form of a JSON text that has one."""
    body = text.encode("utf-8", "surrogatepass")
    outcome = canonical_json(body)
    assert isinstance(outcome, bytes), f"{text!r}: {outcome}"
    assert canonical_json(body + LONG) == outcome
    return outcome


def refusal(body: bytes) -> str:
    """Why this JSON body is refused, in whatever way it is read."""
    outcomes = [
        canonical_json(body),
        canonical_json(body, without="key"),
        parse_json(body),
        json_members(body),
        json_member(body, "key"),
        *(read(body + LONG) for read in (canonical_json, json_members)),
        json_member(body + LONG, "key"),
    ]
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, BadBody)]
    assert len(reasons) == len(outcomes), f"{body!r} was accepted"
    # Which of several mistakes is named, and where, depends on the way in which it is read.
    assert len({re.sub(r' names ".*" twice|\(.*\)', "", reason) for reason in reasons}) == 1
    assert reasons[0].isprintable()
    return reasons[0]


# -------------------------------------------------------------------------- JSON by value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1.0", "1"),
        ("1e2", "100"),
        ("1E+2", "100.000"),
        ("1e21", "1000000000000000000000"),
        ("1e23", "100000000000000000000000"),
        ("12345678901234567890.0", "12345678901234567890"),
        ("-0.0", "0"),
        ("-0", "0"),
        ("0e5", "0.00"),
        ("0.10", "0.1"),
        ("1e-1", "0.1"),
        ("25e-1", "2.5"),
        ("1.5e300", "15" + "0" * 299),
        ("5e-324", "0.5e-323"),
        ('{"a":1,"b":[2,{"c":3,"d":4}]}', ' { "b" : [ 2 , {"d":4,"c":3} ],\n"a":1}\r\n\t'),
        (r'"\u00e9"', '"é"'),
        (r'"\ud83d\ude00"', '"😀"'),
        (r'"\/"', '"/"'),
        (r'"\u0022\u005c\u000A"', r'"\"\\\n"'),
        (r'{"\u0061":1}', '{"a":1}'),
        ("\ufeff[1]", "[1]"),
    ],
)
def test_e20_spellings_of_one_value_are_equal(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", "true"),
        ("1", '"1"'),
        ("0", "false"),
        ("0", "null"),
        ("null", '"null"'),
        ("[]", "{}"),
        ("[]", "null"),
        ("[1,2]", "[2,1]"),
        ("[[1],2]", "[1,[2]]"),
        ('{"a":null}', "{}"),
        ('{"a":"b"}', '["a","b"]'),
        ('{"a":1}', '{"A":1}'),
        ("9007199254740992", "9007199254740993"),
        ("123456789012345678901234567890", "123456789012345678901234567891"),
        ("12345678901234567890.0", "12345678901234567891.0"),
        ("0.1", "0.1000000000000000055"),
        ("0.1000000000000000055", "0.1000000000000000056"),
        ("0.99999999999999999999999", "1"),
        ("9007199254740993.5", "9007199254740994"),
        ("1e400", "1e401"),
        ("1e400", "-1e400"),
        ("1e-400", "0"),
        ("1e-400", "1e-401"),
        ("1e99999", "1e99998"),
        ("1e-99999999999999999999", "0"),
        ("1e99999999999999999999", "1e99999999999999999998"),
        ("1e99999999999999999999", "null"),
        ("1e400", '"1e400"'),
        ('"é"', '"e\u0301"'),
        (r'"\ud800"', r'"\udc00"'),
        (r'"\\u0061"', '"a"'),
        (r'"\u0000"', '""'),
    ],
)
def test_e20_different_values_are_different(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


def test_e20_a_number_beyond_floats_leaves_the_rest_free() -> None:
    assert canonical('{"a":0.1000000000000000055,"b":"é"}') == canonical(
        '{ "b" : "\\u00e9", "a" : 0.1000000000000000055 }'
    )


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(-10, 10, places=2).map(float)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.sampled_from(['"', "\\", "\\u0022", "1", "true", "\x00", "é", "😀"])
)
NAMES = st.sampled_from(["a", "b", "c", "é", '"', "\\"]) | st.text(max_size=3).filter(str.isascii)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def spell(value: Any, chance: random.Random) -> str:
    """Some JSON text of this value."""
    blank = chance.choice(["", "", " ", "\n\t"])
    match value:
        case dict():
            names = list(value)
            chance.shuffle(names)
            members = (f"{spell(name, chance)}:{spell(value[name], chance)}" for name in names)
            return f"{blank}{{{','.join(members)}{blank}}}"
        case list():
            return f"{blank}[{blank}{','.join(spell(item, chance) for item in value)}]"
        case str():
            return blank + spelled_string(value, chance) + blank
        case float():
            exact = Decimal(repr(value))
            return blank + chance.choice([repr(value), f"{exact:E}", f"{exact:f}", f"{exact}"])
        case bool() | None:
            return blank + json.dumps(value)
    return blank + chance.choice([f"{value}", f"{value}.0", f"{value}e0", f"{value}.00E+0"])


def spelled_string(text: str, chance: random.Random) -> str:
    def char(plain: str) -> str:
        code = plain.encode("utf-16-be", "surrogatepass").hex()
        units = "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))
        plain_form = json.dumps(plain, ensure_ascii=False)[1:-1]
        return chance.choice([units, plain_form, plain_form, plain_form])

    return f'"{"".join(map(char, text))}"'


def exactly(text: str) -> Any:
    """An independent reading: numbers exact, and booleans that are no numbers."""

    def tag_types(value: Any) -> Any:
        match value:
            case dict():
                return {name: tag_types(member) for name, member in value.items()}
            case list():
                return [tag_types(item) for item in value]
            case Decimal():
                return ("number", value)
        return value if isinstance(value, str) else ("constant", repr(value))

    return tag_types(json.loads(text, parse_float=Decimal, parse_int=Decimal))


@given(VALUES, st.randoms(use_true_random=False))
def test_e20_order_spacing_escapes_and_number_spelling_never_matter(
    value: Any, chance: random.Random
) -> None:
    one, other = spell(value, chance), spell(value, chance)
    assert exactly(one) == exactly(other)
    assert canonical(one) == canonical(other)


@given(VALUES, VALUES, st.randoms(use_true_random=False))
@example(1, True, random.Random(0))
@example([0.5], ["0.5"], random.Random(0))
def test_p5_e20_what_differs_by_value_differs(one: Any, other: Any, chance: random.Random) -> None:
    texts = spell(one, chance), spell(other, chance)
    same = exactly(texts[0]) == exactly(texts[1])
    assert (canonical(texts[0]) == canonical(texts[1])) == same


NUMBERS = st.from_regex(
    r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True
)


@given(NUMBERS, NUMBERS)
def test_p5_e20_numbers_that_differ_never_look_alike(one: str, other: str) -> None:
    if Decimal(one) != Decimal(other):
        assert canonical(one) != canonical(other)


@given(VALUES, st.randoms(use_true_random=False))
def test_e20_a_canonical_form_is_its_own_canonical_form(value: Any, chance: random.Random) -> None:
    once = canonical(spell(value, chance))
    if b"NaN" not in once:  # as the long numbers stand, which are no JSON
        assert canonical(once.decode()) == once


# ------------------------------------------------------------------------ JSON refused


@pytest.mark.parametrize(
    "text",
    [
        '{"amount":1,"amount":9}',
        '{"amount":9,"amount":9}',
        '[{"x":{"amount":1,"amount":9}}]',
        r'{"amount":1,"\u0061mount":9}',
        r'{"amount":1,"amount":"\""}',
        r'{"amount":1,"amount":"\u0022"}',
        r'{"amount":1,"amount":1,"x":"\u0022\u0022"}',
        '{"amount":1,"amount":0.1000000000000000055}',
        '{"amount":0.1000000000000000055,"amount":1e400}',
        '{"amount":[],"b":"","amount":{"c":"d"}}',
        '{"b":"","amount":1,"amount":2}',
    ],
)
def test_e20_a_name_given_twice_is_refused_and_named(text: str) -> None:
    reason = refusal(text.encode())
    assert '"amount" twice' in reason


def test_a_name_given_twice_is_shown_escaped_and_short() -> None:
    assert r'"\u0000\u001b' in refusal(rb'{"\u0000\u001b":1,"\u0000\u001b":2}')
    long = b'"%b"' % (b"x" * 5000)
    assert len(refusal(b"{%b:1,%b:2}" % (long, long))) < 300


def pairs_twice(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) < len(members):
        raise KeyError
    return found


MEMBERS = st.recursive(
    st.sampled_from(["0", '""', '"b"', r'"\""', r'"\\"', r'"\u0022"', "1e400", "0.5", '"é"']),
    lambda inner: (
        st.lists(
            st.tuples(st.sampled_from(['"a"', '"b"', r'"\u0061"', r'"\""', '""']), inner),
            max_size=4,
        ).map(lambda pairs: "{" + ",".join(f"{name}:{value}" for name, value in pairs) + "}")
        | st.lists(inner, max_size=3).map(lambda items: f"[{','.join(items)}]")
    ),
    max_leaves=10,
)


@given(MEMBERS)
def test_e20_names_given_twice_are_found_at_any_depth_and_only_those(text: str) -> None:
    try:
        json.loads(text, object_pairs_hook=pairs_twice)
    except KeyError:
        assert "twice" in refusal(text.encode())
    else:
        assert canonical(text)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "[NaN]", '{"a":NaN}', "[NaN,49]"])
def test_e20_what_is_not_a_number_is_refused(text: str) -> None:
    assert "is not JSON" in refusal(text.encode())


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1,]", b"{'a':1}", b"01", b"1 2", b'"\t"', b"tru", b".5", b"\xef\xbb\xbf"],
)
def test_malformed_json_is_refused_with_its_place(body: bytes) -> None:
    assert "not valid JSON (line 1, column" in refusal(body)


@pytest.mark.parametrize("body", [b'"\xe9"', b'"\xed\xa0\x80"', '{"a":1}'.encode("utf-16")])
def test_json_that_is_not_utf_8_is_refused(body: bytes) -> None:
    assert "UTF-8" in refusal(body)


@pytest.mark.parametrize("pair", [b"[]", b'{"a":}'])
def test_p11_json_nested_too_deeply_is_refused(pair: bytes) -> None:
    opening, closing = pair[:-1], pair[-1:]
    assert "nested too deeply" in refusal(opening * 100_000 + b"1" + closing * 100_000)
    assert isinstance(canonical_json(opening * 100 + b"1" + closing * 100), bytes)


def test_p11_numbers_of_too_many_digits_are_refused() -> None:
    assert "too many digits" in refusal(b"9" * 5000)
    assert canonical("9" * 40) == b"9" * 40
    assert canonical("-" + "9" * 4300) != canonical("9" * 4300)
    assert canonical("9" * 4000) == canonical("9" * 4000 + " ") != canonical("9" * 3999 + "8")


@pytest.mark.parametrize("text", ["9" * 65_536 + ".5", "1." + "0" * 65_536, "1e" + "9" * 65_536])
def test_p11_a_number_that_stops_all_threads_while_it_is_read_is_refused(text: str) -> None:
    assert "too many digits" in refusal(text.encode())
    assert isinstance(canonical_json(text.encode(), version=1), BadBody)


@pytest.mark.parametrize("end", [b"x", b"", b"{", b'"'])
def test_p11_blanks_that_lead_nowhere_cost_no_more_than_others(end: bytes) -> None:
    """A regular expression that tries again from each of them stops all threads meanwhile."""
    blanks = b"[" + b" " * 1_000_000

    def cpu_s(text: bytes) -> float:
        began = time.thread_time()
        canonical_json(text)
        return time.thread_time() - began

    assert min(cpu_s(blanks + end) for _ in range(5)) < 15 * min(cpu_s(blanks + b"]") for _ in "12")


def test_p11_a_body_does_not_grow_by_its_numbers() -> None:
    """Five bytes were 309 digits: a megabyte of them stopped a server for seconds."""
    for number in ("1e308", "-1.7e308", "1e39", "1e40", "9e99", "12e200"):
        text = f"[{','.join([number] * 10_000)}]"
        assert len(canonical(text)) <= 11 * len(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1e308", "1" + "0" * 308),
        ("-1.5e40", "-15" + "0" * 39),
        ("123e50", "1.23e52"),
        ("1" + "0" * 50 + "e-5", "1e45"),
        ("1" + "0" * 45 + ".0", "10e44"),
        ("1" + "0" * 30 + "e10", "1e40"),
        ("0e400", "0"),
        ("-0.00e999999999", "0"),
    ],
)
def test_e20_long_whole_numbers_are_compared_by_value(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)
    assert canonical_json(one.encode(), version=1) == str(int(Decimal(one))).encode()
    assert canonical_json(one.encode() + LONG, version=1) == str(int(Decimal(one))).encode()


@pytest.mark.slow
def test_p11_version_1_writes_no_more_digits_than_it_wrote_of_a_megabyte() -> None:
    """Ten megabytes of these were half a gigabyte, for whoever had a record of version 1."""
    numbers = b",".join([b"1e308"] * 240_000)
    outcome = canonical_json(b"[" + numbers + b"]", version=1)
    assert isinstance(outcome, BadBody)
    assert "too many digits" in outcome.reason
    assert isinstance(canonical_json(b"[" + numbers[:1_048_001] + b"]", version=1), bytes)


@pytest.mark.parametrize("text", ["[[1,2],{},[]]", '{"a":[1,{"b":2}],"c":"d"}', "5"])
@pytest.mark.parametrize("pieces_max", [0, 1, 2, 3, 5, 8])
def test_what_is_put_together_meanwhile_says_the_same(
    text: str, pieces_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncekey._core.long_json.PIECES_MAX", pieces_max)
    nested = f'{{"x":[{text},{text},[{text},{{"y":{text},"w":[{text}]}}]],"v":{text}}}'
    for each in (text, nested, f"[{nested},{nested}]"):
        assert canonical_json(each.encode() + LONG) == canonical_json(each.encode())


@pytest.mark.slow
def test_p11_a_long_text_takes_little_more_memory_than_itself() -> None:
    text = b"[" + b",".join([b'{"a":[1,2]},[],1'] * 60_000) + b"]"
    tracemalloc.start()
    try:
        canonical_json(text)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(text)
    finally:
        tracemalloc.stop()


def test_e20_names_are_sorted_however_many_there_are() -> None:
    names = [f"{each * 7_919 % 40_009:x}" for each in range(40_000)]
    members = ",".join(f'"{name}":1' for name in names)
    assert (
        canonical(f"{{{members}}}")
        == json.dumps(dict.fromkeys(sorted(names), 1), separators=(",", ":")).encode()
    )


@given(NUMBERS)
def test_e27_version_1_writes_whole_numbers_as_digits(text: str) -> None:
    exact = Decimal(text)
    if exact == exact.to_integral_value() and abs(exact) < Decimal("1e308"):
        assert canonical_json(text.encode(), version=1) == b"%d" % int(exact)


@pytest.mark.parametrize(
    "text",
    [
        "1e999999999999999999999",
        "0e999999999999999999999",
        "0." + "0" * 60_000 + "1",
        "1" * 60_000 + ".5",
        "1." + "0" * 60_000,
    ],
)
def test_p11_no_number_costs_more_than_its_length(text: str) -> None:
    assert len(canonical(text)) < 4 * len(text) + 100


# ------------------------------------------------------------------------ leaving a field out


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('{"key":"a","x":1}', '{"x":1}', True),
        ('{"key":"a","x":1}', '{"key":"b","x":1}', True),
        ('{"key":"a","x":1}', '{"key":"a","x":2}', False),
        ('{"x":{"key":"a"}}', '{"x":{"key":"b"}}', False),
        ('["key"]', "[]", False),
    ],
)
def test_e11_only_a_field_of_the_outermost_object_is_left_out(
    one: str, other: str, same: bool
) -> None:
    found = [canonical_json(text.encode(), without="key") for text in (one, other)]
    assert (found[0] == found[1]) == same


# -------------------------------------------------------------------------------- members


def test_members_are_canonical_one_by_one() -> None:
    assert json_members(b'{"b": 1.0, "a": {"y":1, "x":"\\u00e9"}}') == {
        "b": b"1",
        "a": b'{"x":"\\u00e9","y":1}',
    }
    assert json_members(b"[1]") == {}


# -------------------------------------------------------------------------- content types


@pytest.mark.parametrize(
    ("content_type", "expected", "json_like"),
    [
        ("application/json", "application/json", True),
        ("Application/JSON ; charset=utf-8", "application/json", True),
        ("application/vnd.api+json;v=1", "application/vnd.api+json", True),
        ("application/x-amz-json-1.1", "application/x-amz-json-1.1", True),
        ("text/plain", "text/plain", False),
        ("application/jsonl", "application/jsonl", False),
        ("", "", False),
    ],
)
def test_e24_only_the_essence_of_a_content_type_counts(
    content_type: str, expected: str, json_like: bool
) -> None:
    assert essence(content_type) == expected
    assert is_json(expected) is json_like


def test_p11_other_threads_have_their_turn_while_a_long_text_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[float] = []
    monkeypatch.setattr("oncekey._core.long_json.time.sleep", turns.append)
    values = b"[" + b"1," * 100_000 + b"1]"
    assert canonical_json(values) == values
    assert len(turns) == 100_002 // TURN
