"""Recent: what a process may replay without asking the store."""

from typing import Any

import pytest

from oncekey._core.record import Answer, Record, State
from oncekey._engine.decisions import Replay
from oncekey.web._replay_cache import (
    BODY_BYTES_MAX,
    REPLAY_BYTES_MAX,
    REPLAYS_MAX,
    Asked,
    Known,
    Recent,
)

RECORD = Record(
    id=bytes(32),
    token=bytes(16),
    tenant="acme",
    operation="POST /orders",
    key="k1",
    fingerprint=bytes(32),
    fingerprint_version=1,
    lease_s=30.0,
    retention_s=60.0,
    recovery="rerun",
    schema_version=0,
    field_digests={},
    state=State.COMPLETED,
    fence=1,
    attempt=1,
    lapses=0,
    beat=1,
    no_effect=False,
    answer=Answer(201, (), b"paid"),
    resource_id=None,
    age_s=1.0,
    lease_left_s=0.0,
    expires_in_s=60.0,
)
SENT = Answer(201, ((b"idempotent-replayed", b"true"),), b"paid")


def asked(number: int, at: float) -> Asked:
    return ("k1", "acme", b"%d" % number), at


def kept(recent: Recent, number: int, at: float, **changes: Any) -> Replay:
    replay = Replay(Answer(201, (), b"paid"), changes.get("expires_in_s", 60.0), RECORD)
    recent.keep(asked(number, at), replay, changes.get("sent", SENT))
    return replay


def test_what_was_sent_is_found_for_a_while() -> None:
    recent = Recent(5.0)
    replay = kept(recent, 1, 100.0)
    assert recent.find(asked(1, 100.0)) == Known(replay, SENT, 0.0)
    assert recent.find(asked(1, 104.5)) == Known(replay, SENT, 4.5)
    assert recent.find(asked(1, 105.0)) is None
    assert recent.find(asked(2, 100.0)) is None


def test_p3_nothing_is_found_beyond_its_retention() -> None:
    recent = Recent(5.0)
    kept(recent, 1, 100.0, expires_in_s=1.0)
    assert recent.find(asked(1, 100.9)) is not None
    assert recent.find(asked(1, 101.0)) is None


def test_the_newest_reading_counts() -> None:
    recent = Recent(5.0)
    kept(recent, 1, 100.0)
    purged = Answer(409, (), b"gone")
    kept(recent, 1, 103.0, sent=purged)
    found = recent.find(asked(1, 106.0))
    assert found is not None
    assert found.sent == purged


def test_zero_seconds_remember_nothing() -> None:
    recent = Recent(0.0)
    kept(recent, 1, 100.0)
    assert recent.find(asked(1, 100.0)) is None


@pytest.mark.parametrize("more", [0, 1])
def test_p11_long_answers_are_not_kept_in_memory(more: int) -> None:
    recent = Recent(5.0)
    kept(recent, 1, 100.0, sent=Answer(201, (), bytes(BODY_BYTES_MAX + more)))
    assert (recent.find(asked(1, 100.0)) is None) == bool(more)


def test_p11_neither_are_long_queries_and_headers() -> None:
    """Thousands of them would fill the memory, and some servers pass on megabytes."""
    recent, replay = Recent(5.0), kept(Recent(5.0), 1, 100.0)
    long = bytes(REPLAY_BYTES_MAX)
    recent.keep((("k1", long), 100.0), replay, SENT)
    assert recent.find((("k1", long), 100.0)) is None
    kept(recent, 1, 100.0, sent=Answer(201, ((b"x", long),), b""))
    assert recent.find(asked(1, 100.0)) is None


def test_p11_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    recent = Recent(5.0)
    for number in range(3 * REPLAYS_MAX):
        kept(recent, number, 100.0)
    found = [n for n in range(3 * REPLAYS_MAX) if recent.find(asked(n, 100.0))]
    assert REPLAYS_MAX // 2 <= len(found) <= REPLAYS_MAX
    assert found == list(range(3 * REPLAYS_MAX))[-len(found) :]
