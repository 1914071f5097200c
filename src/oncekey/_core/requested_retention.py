"""The retention that a client asks for: how long it may still retry.

Who knows that it will retry for a week says so with its first try, and who will not come back after
an hour need not be remembered for a day. The operation's policy says within which limits.

Asked for too little, the shortest is given: it can only help. Asked for too much, the request is
refused before it runs: a client that counts on a week must not be remembered for a day without
noticing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from oncekey._core.problems import Kind, Problem

HEADER = "idempotency-retention"
_SECONDS = re.compile(rb"[0-9]{1,10}")


def declared_retention_s(lines: Sequence[bytes], limits: tuple[float, float]) -> float | Problem:
    """The retention that the header lines ask for, within limits; or why it cannot be given."""
    shortest_s, longest_s = limits
    asked = lines[0].strip(b" \t") if len(lines) == 1 else b""
    if not _SECONDS.fullmatch(asked):
        return Problem(
            Kind.MALFORMED_REQUEST,
            "Send one header Idempotency-Retention, with the seconds for which this request may "
            "still be retried, such as 86400.",
        )
    retention_s = float(asked)
    if retention_s > longest_s:
        return Problem(
            Kind.MALFORMED_REQUEST,
            f"The header Idempotency-Retention asks for more than {longest_s:g} seconds, the "
            "longest that this operation is remembered. Ask for no more, and do not retry after "
            "that.",
        )
    return max(retention_s, shortest_s)
