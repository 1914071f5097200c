"""Recent: what a process may replay without asking the store."""

import dataclasses

import pytest

from oncekey.core.record import Answer, Record, State
from oncekey.recent import ANSWER_BYTES_MAX, RECORDS_MAX, Recent


def completed(
    number: int = 1, *, body: bytes | None = b"paid", expires_in_s: float = 60.0
) -> Record:
    return Record(
        id=number.to_bytes(32),
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
        answer=Answer(201, (), body),
        resource_id=None,
        age_s=1.0,
        lease_left_s=0.0,
        expires_in_s=expires_in_s,
    )


def test_what_was_read_is_found_for_a_while() -> None:
    recent, record = Recent(5.0), completed()
    recent.keep(record, 100.0)
    assert recent.find(record.id, 100.0) == (record, 0.0)
    assert recent.find(record.id, 104.5) == (record, 4.5)
    assert recent.find(record.id, 105.0) is None
    assert recent.find(bytes(32), 100.0) is None


def test_p3_nothing_is_found_beyond_its_retention() -> None:
    recent, record = Recent(5.0), completed(expires_in_s=1.0)
    recent.keep(record, 100.0)
    assert recent.find(record.id, 100.9) is not None
    assert recent.find(record.id, 101.0) is None


def test_the_newest_reading_counts() -> None:
    recent, record = Recent(5.0), completed()
    purged = dataclasses.replace(record, answer=Answer(201, (), None))
    recent.keep(record, 100.0)
    recent.keep(purged, 103.0)
    assert recent.find(record.id, 106.0) == (purged, 3.0)


def test_zero_seconds_remember_nothing() -> None:
    recent, record = Recent(0.0), completed()
    recent.keep(record, 100.0)
    assert recent.find(record.id, 100.0) is None


@pytest.mark.parametrize("more", [0, 1])
def test_p11_long_answers_are_not_kept_in_memory(more: int) -> None:
    recent, record = Recent(5.0), completed(body=bytes(ANSWER_BYTES_MAX + more))
    recent.keep(record, 100.0)
    assert (recent.find(record.id, 100.0) is None) == bool(more)


def test_p11_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    recent = Recent(5.0)
    for number in range(3 * RECORDS_MAX):
        recent.keep(completed(number), 100.0)
    found = [n for n in range(3 * RECORDS_MAX) if recent.find(n.to_bytes(32), 100.0)]
    assert RECORDS_MAX // 2 <= len(found) <= RECORDS_MAX
    assert found == list(range(3 * RECORDS_MAX))[-len(found) :]
