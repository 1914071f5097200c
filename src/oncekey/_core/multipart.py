"""Canonical multipart forms: only the boundary, which clients change with every try, is ignored.

Everything else counts: the order of the parts, all their header lines (not only name, filename and
content type: a transfer encoding changes what the handler reads), their contents, and what is
before the first part and after the last.

A body comes in chunks of any size, so an upload need not be in memory.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator
from operator import itemgetter

from oncekey._core.canonical import FIELDS_MAX, BadBody, json_member
from oncekey._core.framing import as_bytes, frame
from oncekey._core.long_json import PAUSE_S

MULTIPART = "multipart/form-data"

HEAD_BYTES_MAX = 16_384
"""Of the header lines of one part, and of what is before the first part or after the last."""
HEAD_LINES_MAX = 4 * FIELDS_MAX
"""Of all parts together."""
CONTENT_BYTES_MAX = 16_384
"""Of a part that is searched for a key."""
TURN = 64
"""After so many parts and header lines another thread may run, as in long JSON texts."""

_PARAMETER = re.compile(r';\s*([^\s=;"]+)=(?:"([^"]*)"|([^\s;"]*))')
_BLANK = b"\r\n\r\n"


class _MultipartError(Exception):
    """Carries a reason out of the reader."""


def canonical_multipart(content_type: str, chunks: Iterable[bytes]) -> Iterator[bytes | BadBody]:
    """Yield the framed parts of a body, each content as its SHA-256. If the body has no canonical
    form, the last one says why.
    """
    try:
        for piece in _Reader().pieces(content_type, chunks):
            yield b"%d:%b" % (len(piece), piece)
    except _MultipartError as refused:
        yield BadBody(str(refused))


def multipart_keys(content_type: str, chunks: Iterable[bytes], name: str) -> list[bytes] | BadBody:
    """Return the keys in a body: the contents of parts of this name, and the members of this name
    in parts that are JSON.
    """
    reader = _Reader(name)
    try:
        for _ in reader.pieces(content_type, chunks):
            pass
    except _MultipartError as refused:
        return BadBody(str(refused))
    return reader.keys


class _Reader:
    """Reads one body. A piece is between two boundaries, before the first or after the last."""

    def __init__(self, key_name: str | None = None) -> None:
        self.keys: list[bytes] = []
        self._key_name = key_name
        self._number = 0
        """Of the current piece; 0 is what is before the first part."""
        self._lines = 0
        self._turn = TURN
        self._begin()

    def _begin(self) -> None:
        self._head = b""
        """The piece so far, until its content begins."""
        self._headers: bytes | None = None
        self._content = hashlib.sha256()
        self._kept: bytes | None = b""
        """The content, if it is short."""
        self._is_key = False

    def pieces(self, content_type: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield what is before the first part, each part, and what is after the last one."""
        for piece, ends in _split(chunks, b"\r\n--" + _boundary(content_type)):
            self._add(piece)
            if ends:
                yield self._finish_piece()
                self._number += 1
                if self._number > FIELDS_MAX + 1:
                    raise _MultipartError(f"The form has more than {FIELDS_MAX} parts. Send fewer.")
                self._begin()
                self._pause()
        if not self._number:
            raise _MultipartError(
                "The multipart body does not hold the boundary that its content type names."
            )
        if not self._head.startswith(b"--"):
            raise _MultipartError(
                "The multipart body ends without its closing boundary. Send all of it."
            )
        yield self._head

    def _pause(self) -> None:
        if self._number + self._lines >= self._turn:
            self._turn = self._number + self._lines + TURN
            time.sleep(PAUSE_S)

    def _add(self, piece: bytes) -> None:
        if self._headers is not None:
            self._add_content(piece)
            return
        self._head += piece
        around = not self._number or self._head.startswith(b"--")
        head, blank, content = (self._head, b"", b"") if around else self._head.partition(_BLANK)
        if len(head) > HEAD_BYTES_MAX:
            raise _MultipartError(
                f"The multipart body has more than {HEAD_BYTES_MAX} bytes around its parts, or in "
                "the header lines of one. Send fewer."
            )
        if blank:
            self._headers, self._head = self._read_headers(head), b""
            self._add_content(content)

    def _add_content(self, piece: bytes) -> None:
        self._content.update(piece)
        if self._key_name is not None and self._kept is not None:
            content = self._kept + piece
            self._kept = content if len(content) <= CONTENT_BYTES_MAX else None

    def _finish_piece(self) -> bytes:
        if not self._number:
            return self._head
        if self._headers is None:
            raise self._malformed_part()
        if self._key_name is not None and self._kept:
            self._find_key(self._key_name, self._kept)
        return self._headers + frame([self._content.digest()])

    def _read_headers(self, head: bytes) -> bytes:
        """Frame the header lines, in any order and letter case."""
        padding, *lines = head.split(b"\r\n")
        self._lines += len(lines)
        if self._lines > HEAD_LINES_MAX:
            raise _MultipartError(
                f"The form has more than {HEAD_LINES_MAX} header lines. Send fewer."
            )
        if padding.strip(b" \t") or not all(b":" in line for line in lines):
            raise self._malformed_part()
        split = [line.partition(b":") for line in lines]
        headers = [(name.strip().lower(), value.strip()) for name, _, value in split]
        headers.sort(key=itemgetter(0))  # if a name is there twice, some parsers take the last
        self._is_key = self._names_key(dict(headers).get(b"content-disposition", b""))
        return frame(part for pair in headers for part in pair)

    def _names_key(self, disposition: bytes) -> bool:
        parameters = _PARAMETER.findall(disposition.decode("latin-1"))
        return any(
            name.lower() == "name" and (quoted or bare) == self._key_name
            for name, quoted, bare in parameters
        )

    def _find_key(self, name: str, content: bytes) -> None:
        if self._is_key:
            self.keys.append(content)
        elif content.lstrip(b" \t\r\n").startswith(b"{"):
            found = json_member(content, name)
            if isinstance(found, str):
                self.keys.append(as_bytes(found))
            elif isinstance(found, BadBody) and as_bytes(name) in content:
                raise _MultipartError(found.reason)

    def _malformed_part(self) -> _MultipartError:
        return _MultipartError(
            f"Part {self._number} of the multipart body is malformed. Each needs its header lines, "
            "an empty line and its content, with CRLF line ends."
        )


def _boundary(content_type: str) -> bytes:
    boundaries = [
        quoted or bare
        for name, quoted, bare in _PARAMETER.findall(content_type)
        if name.lower() == "boundary"
    ]
    if len(boundaries) != 1 or not boundaries[0]:
        raise _MultipartError(
            "The multipart content type does not name exactly one boundary. Name it."
        )
    return as_bytes(boundaries[0])


def _split(chunks: Iterable[bytes], delimiter: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the pieces of a body, each with whether it ends there: a long one comes in parts."""
    rest = b"\r\n"  # the first boundary need not follow a line end
    behind = len(delimiter) - 1
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(delimiter)
        for piece in whole:
            yield piece, True
        if len(rest) > behind:
            yield rest[: len(rest) - behind], False
            rest = rest[len(rest) - behind :]
    yield rest, False
