"""Multipart forms (E22): by part, with a free boundary, and never looser."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.core.canonical import FIELDS_MAX, BadBody
from oncekey.core.multipart import canonical_multipart


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
