"""Keys that are older than memory: how a retry that comes after its record expired is told from a
new request.

Most keys tell nothing, and such a retry runs again (E67). A UUID of version 7 and a ULID tell when
they were made, and some clients say when they first sent a request. What is done with a key is
remembered for `Policy.memory_s` at least, so a key of which nothing is known was surely not used
before if it is younger than that; if it is older, it may have been, and is not run.

The clocks of whoever made the key and of this server may be `clock_skew_s` apart. A key from
further in the future tells nothing but that one of the clocks is wrong.
"""

from __future__ import annotations

from oncekey._core.key_time import made_at
from oncekey._core.policy import Policy
from oncekey._core.problems import Kind, Problem


def check_key_age(
    key: str, first_sent: float | None, now_wall: float, policy: Policy
) -> Problem | None:
    """Why a key of which nothing is known is not run as new; None if it may be."""
    if policy.key_age_s_max is None:
        return None
    made = made_at(key, first_sent)
    if made is None:
        return _undated() if policy.key_time_required else None
    if made - now_wall > policy.clock_skew_s:
        return Problem(
            Kind.TOO_OLD,
            f"This key says that it was made more than {policy.clock_skew_s:g} seconds from now, "
            "so its age cannot be told, and it was not run. Correct the clock of the machine that "
            "made it, then send the request with a new key.",
        )
    return older_than_memory(key, first_sent, now_wall, policy)


def older_than_memory(
    key: str, first_sent: float | None, at_wall: float, policy: Policy
) -> Problem | None:
    """The same of what was begun at a moment, if memory did not reach back to the key's making."""
    made = made_at(key, first_sent)
    if policy.key_age_s_max is None or made is None or at_wall - made <= policy.key_age_s_max:
        return None
    return Problem(
        Kind.TOO_OLD,
        f"This key was made more than {policy.key_age_s_max:g} seconds ago, and what was done with "
        "it, if anything was, is not remembered any more. So it was not run. If the request is "
        "new, send it with a new key.",
    )


def _undated() -> Problem:
    return Problem(
        Kind.INVALID_KEY,
        "This key does not tell when it was made, so it cannot be told from one whose record has "
        "expired. Send a UUID of version 7 or a ULID, made anew for each operation.",
    )
