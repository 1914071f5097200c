"""Several byte strings as one, so that no two different lists give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable


def frame(parts: Iterable[bytes | None]) -> bytes:
    """Each part behind its length; None is distinct from empty.

    No frame is the beginning of another part's frame, so nothing can slide from one part into
    the next. The number of parts is not framed: what follows a frame must tell where it ends.

    >>> frame([b"ab", b"", None])
    b'2:ab0:-'
    """
    return b"".join([b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts])


def as_bytes(text: str) -> bytes:
    """UTF-8 for every string: also for the lone surrogates that some servers leave in paths."""
    return text.encode("utf-8", "surrogatepass")
