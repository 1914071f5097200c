"""Multipart forms by part: the boundary, which clients choose anew for every try, is free.

Everything else counts: the order of the parts, all their header lines (not only name, filename and
content type: a transfer encoding changes what the handler reads), their contents, and what stands
before the first part and after the last.
"""

from __future__ import annotations

import hashlib
import re
from operator import itemgetter

from oncekey.core.canonical import FIELDS_MAX, BadBody
from oncekey.core.framing import as_bytes, frame

MULTIPART = "multipart/form-data"

_PARAMETER = re.compile(r';\s*([^\s=;"]+)=(?:"([^"]*)"|([^\s;"]*))')


def canonical_multipart(content_type: str, body: bytes) -> bytes | BadBody:
    """The framed parts of a body; contents stand as their SHA-256."""
    boundaries = [
        quoted or bare
        for name, quoted, bare in _PARAMETER.findall(content_type)
        if name.lower() == "boundary"
    ]
    if len(boundaries) != 1 or not boundaries[0]:
        return BadBody("The multipart content type does not name exactly one boundary. Name it.")
    delimiter = b"\r\n--" + as_bytes(boundaries[0])
    pieces = (b"\r\n" + body).split(delimiter, FIELDS_MAX + 2)
    if len(pieces) > FIELDS_MAX + 2:
        return BadBody(f"The form has more than {FIELDS_MAX} parts. Send fewer.")
    if len(pieces) == 1:
        return BadBody("The multipart body does not hold the boundary that its content type names.")
    before, *parts, end = pieces
    if not end.startswith(b"--"):
        return BadBody("The multipart body ends without its closing boundary. Send all of it.")
    framed = [_part(piece) for piece in parts]
    if None in framed:
        return BadBody(
            f"Part {framed.index(None) + 1} of the multipart body is malformed. Each needs its "
            "header lines, an empty line and its content, with CRLF line ends."
        )
    return frame([before, *framed, end])


def _part(piece: bytes) -> bytes | None:
    """One part, from behind its delimiter; its header lines in any order and letter case."""
    head, blank, content = piece.partition(b"\r\n\r\n")
    padding, *lines = head.split(b"\r\n")
    if not blank or padding.strip(b" \t") or not all(b":" in line for line in lines):
        return None
    split = [line.partition(b":") for line in lines]
    headers = [(name.strip().lower(), value.strip()) for name, _, value in split]
    headers.sort(key=itemgetter(0))  # of two lines of one name, some parsers take the last
    return frame([*(part for pair in headers for part in pair), hashlib.sha256(content).digest()])
