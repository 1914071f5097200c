"""What is written to DynamoDB, judged by Amazon's rules: an emulator is more patient."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncekey._system.clock import FakeClock
from oncekey.stores.dynamodb import items
from oncekey.stores.dynamodb.statements import Call
from oncekey.stores.memory import MemoryStore
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace
from tests.stores.dynamodb.kit import must_suit_amazon

NOW_US = 1_700_000_000_000_000


@pytest.fixture
def case() -> Iterator[Case]:
    clock = FakeClock()
    store = MemoryStore(clock)
    face = SyncFace(store)
    yield Case(Subject(store, elapse=clock.advance), face)
    face.close()


@pytest.mark.parametrize("request_bytes", [None, b"POST /orders"], ids=["alone", "with-request"])
@pytest.mark.parametrize("recovery", ["rerun", "resume"])
def test_p6_amazon_understands_every_change_of_a_record(
    case: Case, recovery: str, request_bytes: bytes | None
) -> None:
    """It refused to let a record be taken over with the request that a recoverer needs."""
    record = case.begin(case.claim(recovery=recovery, request=request_bytes))
    taken = case.take(record, recovery=recovery, request=request_bytes)
    for swap in (taken, case.renew(record), case.complete(record), case.release(record)):
        update = items.swapped(swap, record.fence + 1, NOW_US, NOW_US)
        must_suit_amazon(Call("update_item", update.parameters()))
