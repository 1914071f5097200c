"""Multipart forms (E22): by part, with a free boundary, and never looser."""

import hashlib
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey._core.canonical import FIELDS_MAX, BadBody
from oncekey._core.framing import frame
from oncekey._core.multipart import HEAD_BYTES_MAX, HEAD_LINES_MAX, TURN, multipart_keys
from oncekey._core.multipart import canonical_multipart as read


@dataclass(frozen=True)
class Part:
    name: str
    content: bytes
    filename: str | None = None
    content_type: str | None = None

    def headers(self) -> list[str]:
        filename = f'; filename="{self.filename}"' if self.filename is not None else ""
        lines = [f'Content-Disposition: form-data; name="{self.name}"{filename}']
        return lines + ([f"Content-Type: {self.content_type}"] if self.content_type else [])


def encoded(parts: list[Part], boundary: str) -> bytes:
    body = b""
    for part in parts:
        head = "\r\n".join(part.headers()).encode()
        body += b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary.encode(), head, part.content)
    return body + b"--%b--\r\n" % boundary.encode()


def canonical_multipart(content_type: str, body: bytes, cut_at: int = 65_536) -> bytes | BadBody:
    """The canonical form of a body that comes in chunks of this size."""
    chunks = [body[at : at + cut_at] for at in range(0, len(body), cut_at)]
    framed = list(read(content_type, chunks))
    if isinstance(framed[-1], BadBody):
        return framed[-1]
    return b"".join(each for each in framed if isinstance(each, bytes))


def canonical(body: bytes, content_type: str = "multipart/form-data; boundary=XX") -> bytes:
    outcome = canonical_multipart(content_type, body)
    assert isinstance(outcome, bytes), outcome
    return outcome


def of_parts(parts: list[Part], boundary: str = "XX") -> bytes:
    return canonical(encoded(parts, boundary), f"multipart/form-data; boundary={boundary}")


FILE = Part("photo", b"\x89PNG\r\n\x00--X\r\n--", "cat.png", "image/png")
NOTE = Part("note", b"hello")


def test_e22_the_boundary_is_free() -> None:
    assert of_parts([FILE, NOTE], "----WebKitFormBoundaryA1") == of_parts([FILE, NOTE], "b0f3")


@pytest.mark.parametrize(
    "content_type",
    [
        'multipart/form-data; boundary="XX"',
        "multipart/form-data;BOUNDARY=XX",
        "multipart/form-data; charset=utf-8; boundary=XX",
        'multipart/form-data; note="; boundary=YY"; boundary=XX',
    ],
)
def test_e22_the_boundary_is_found_however_it_is_written(content_type: str) -> None:
    assert canonical(encoded([NOTE], "XX"), content_type) == of_parts([NOTE])


@pytest.mark.parametrize(
    "other",
    [
        [NOTE, FILE],
        [FILE],
        [FILE, NOTE, NOTE],
        [],
        [FILE, replace(NOTE, name="Note")],
        [FILE, replace(NOTE, content=b"hello\n")],
        [FILE, replace(NOTE, content=b"")],
        [FILE, replace(NOTE, filename="")],
        [FILE, replace(NOTE, content_type="text/plain")],
        [replace(FILE, filename="dog.png"), NOTE],
        [replace(FILE, content_type="image/jpeg"), NOTE],
        [replace(FILE, content=NOTE.content), replace(NOTE, content=FILE.content)],
    ],
)
def test_e22_parts_their_order_names_types_and_contents_count(other: list[Part]) -> None:
    assert of_parts([FILE, NOTE]) != of_parts(other)


def test_e22_header_lines_may_change_their_order_case_and_spacing() -> None:
    one = b"--XX\r\nContent-Type: text/x\r\nX-Note: a; b\r\n\r\n1\r\n--XX--"
    other = b"--XX \t\r\nx-note:a; b \r\nCONTENT-TYPE:  text/x\r\n\r\n1\r\n--XX--"
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    "other",
    [
        b"--XX\r\nA: b\r\nContent-Transfer-Encoding: base64\r\n\r\nMQ==\r\n--XX--",
        b"before\r\n--XX\r\nA: b\r\n\r\nMQ==\r\n--XX--",
        b"--XX\r\nA: b\r\n\r\nMQ==\r\n--XX--after",
        b"--XX\r\n\r\nA: b\r\n\r\nMQ==\r\n--XX--",
        b"--XX\r\nA: b\r\n\r\nMQ==\r\n\r\n--XX--",
    ],
)
def test_p5_e22_whatever_a_handler_might_read_counts(other: bytes) -> None:
    assert canonical(b"--XX\r\nA: b\r\n\r\nMQ==\r\n--XX--") != canonical(other)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"hello", "does not hold the boundary"),
        (b"--YY\r\nA: b\r\n\r\n1\r\n--YY--", "does not hold the boundary"),
        (b"--XX\r\nA: b\r\n\r\n1", "closing boundary"),
        (b"--XX\r\nA: b\r\n\r\n1\r\n--XX", "closing boundary"),
        (b"--XX\r\nA: b\r\n1\r\n--XX--", "Part 1"),
        (b"--XX\r\nA: b\r\n\r\n1\r\n--XX\r\nnone\r\n\r\n1\r\n--XX--", "Part 2"),
        (b"--XX\nA: b\n\n1\r\n--XX--", "Part 1"),
        (b"--XXY\r\nA: b\r\n\r\n1\r\n--XX--", "Part 1"),
        (b"--XX--\r\n--XX--", "Part 1"),
    ],
)
def test_malformed_bodies_are_refused(body: bytes, reason: str) -> None:
    outcome = canonical_multipart("multipart/form-data; boundary=XX", body)
    assert isinstance(outcome, BadBody)
    assert reason in outcome.reason


@pytest.mark.parametrize(
    "parameters", ["", "; boundary=", '; boundary=""', "; boundary=A; boundary=A", "; xboundary=A"]
)
def test_a_boundary_must_be_named_once(parameters: str) -> None:
    outcome = canonical_multipart(f"multipart/form-data{parameters}", b"--A--")
    assert isinstance(outcome, BadBody)
    assert "exactly one boundary" in outcome.reason


def test_p11_a_form_of_too_many_parts_is_refused() -> None:
    part = b"--X\r\n\r\n\r\n"
    assert canonical(part * FIELDS_MAX + b"--X--", "multipart/form-data; boundary=X")
    outcome = canonical_multipart(
        "multipart/form-data; boundary=X", part * (FIELDS_MAX + 1) + b"--X--"
    )
    assert isinstance(outcome, BadBody)
    assert str(FIELDS_MAX) in outcome.reason


PARTS = st.lists(
    st.builds(
        Part,
        st.text("ab", max_size=2),
        st.binary(max_size=6) | st.sampled_from([b"\r\n", b"\r\n--", b"\r\n\r\n", b"--XX"]),
        st.none() | st.text("ab", max_size=2),
        st.none() | st.sampled_from(["text/plain", "image/png"]),
    ),
    max_size=3,
)


@given(PARTS, PARTS)
def test_p5_e22_forms_are_equal_only_part_by_part(one: list[Part], other: list[Part]) -> None:
    assert (of_parts(one, "b1-one") == of_parts(other, "b2-other")) == (one == other)


@given(st.binary(max_size=60) | st.text("X-:\r\na", max_size=40).map(str.encode))
def test_whatever_is_sent_gives_a_form_or_a_reason(body: bytes) -> None:
    outcome = canonical_multipart("multipart/form-data; boundary=X", body)
    assert isinstance(outcome, bytes | BadBody)


def test_p5_two_header_lines_of_one_name_keep_their_order() -> None:
    def form(*names: str) -> object:
        lines = "".join(f'Content-Disposition: form-data; name="{name}"\r\n' for name in names)
        body = f"--b\r\n{lines}\r\n1\r\n--b--\r\n".encode()
        return canonical_multipart("multipart/form-data; boundary=b", body)

    assert isinstance(form("a", "z"), bytes)
    assert form("a", "z") != form("z", "a")


# ------------------------------------------------------------------------------ in chunks


@given(PARTS, st.integers(1, 40))
def test_e22_how_a_body_is_cut_into_chunks_does_not_matter(parts: list[Part], cut_at: int) -> None:
    body, content_type = encoded(parts, "between"), "multipart/form-data; boundary=between"
    assert canonical_multipart(content_type, body, cut_at) == of_parts(parts, "other")


@given(st.text("X-:\r\na", max_size=60).map(str.encode), st.integers(1, 9))
def test_e22_nor_does_it_for_what_is_malformed(body: bytes, cut_at: int) -> None:
    content_type = "multipart/form-data; boundary=X"
    assert canonical_multipart(content_type, body, cut_at) == canonical_multipart(
        content_type, body
    )


def test_e27_the_form_is_the_one_that_it_always_was() -> None:
    body = b"--XX\r\nB: 2\r\nA: 1\r\n\r\nhello\r\n--XX--\r\n"
    digest = hashlib.sha256(b"hello").digest()
    assert canonical(body) == frame([b"", frame([b"a", b"1", b"b", b"2", digest]), b"--\r\n"])


@pytest.mark.parametrize(
    "body",
    [
        b"--XX\r\nA: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n1\r\n--XX--",
        b"--XX\r\nA: b\r\n\r\n1\r\n--XX--" + b"x" * HEAD_BYTES_MAX,
        b"x" * (HEAD_BYTES_MAX + 1) + b"\r\n--XX\r\nA: b\r\n\r\n1\r\n--XX--",
        b"--XX\r\nA: b\r\n\r\n1\r\n--XX\r\n" + b"A: b\r\n" * HEAD_BYTES_MAX,
    ],
    ids=["header line", "after", "before", "no end of header lines"],
)
def test_p11_what_stands_around_contents_is_limited(body: bytes) -> None:
    for cut_at in (100, 65_536):
        outcome = canonical_multipart("multipart/form-data; boundary=XX", body, cut_at)
        assert isinstance(outcome, BadBody)
        assert str(HEAD_BYTES_MAX) in outcome.reason


def test_p11_header_lines_are_limited() -> None:
    part = b"--XX\r\n" + b"a:b\r\n" * 3000 + b"\r\n1\r\n"
    times = HEAD_LINES_MAX // 3000
    assert canonical(part * times + b"--XX--")
    outcome = canonical_multipart(
        "multipart/form-data; boundary=XX", part * (times + 1) + b"--XX--"
    )
    assert isinstance(outcome, BadBody)
    assert "header lines" in outcome.reason


# -------------------------------------------------------------------- a key in a part


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Part("key", b"k-1"), [b"k-1"]),
        (Part("Key", b"k-1"), []),
        (Part("request", b'{"key":"k-1"}', None, "application/json"), [b"k-1"]),
        (Part("request", b' {"key":"k-1"}'), [b"k-1"]),
        (Part("request", b'{"other":"k-1"}'), []),
        (Part("request", b'{"key":1}'), []),
        (Part("request", b'{"other"'), []),
        (Part("request", b"x" * 100_000), []),
    ],
)
def test_e11_keys_in_parts_are_found(part: Part, expected: list[bytes]) -> None:
    body = encoded([FILE, part, NOTE], "XX")
    assert multipart_keys("multipart/form-data; boundary=XX", [body], "key") == expected


@pytest.mark.parametrize("content", [b'{"key"', b'{"key":"k-1","a":NaN}'])
def test_e11_a_part_that_may_hold_one_and_cannot_be_read_is_refused(content: bytes) -> None:
    body = encoded([FILE, Part("request", content)], "XX")
    assert isinstance(multipart_keys("multipart/form-data; boundary=XX", [body], "key"), BadBody)


def test_e11_parts_that_cannot_be_read_have_no_keys() -> None:
    assert isinstance(multipart_keys("multipart/form-data; boundary=XX", [b"--X"], "key"), BadBody)


def test_p11_a_form_of_many_parts_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns: list[float] = []
    monkeypatch.setattr("oncekey._core.multipart.time.sleep", turns.append)
    parts = [Part(str(n), b"x") for n in range(1_000)]
    assert of_parts(parts)
    assert len(turns) == 2 * 1_000 // TURN  # a part and its header line
