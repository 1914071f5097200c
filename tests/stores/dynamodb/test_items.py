"""Writes to DynamoDB, checked by Amazon's rules: an emulator is more lenient."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncekey._system.clock import FakeClock
from oncekey.stores.dynamodb import items
from oncekey.stores.dynamodb.statements import ApiCall
from oncekey.stores.memory import MemoryStore
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace
from tests.stores.dynamodb.kit import check_amazon_rules

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
    """Amazon used to refuse take-overs with the request that recovery needs."""
    record = case.begin(case.claim(recovery=recovery, request=request_bytes))
    taken = case.take(record, recovery=recovery, request=request_bytes)
    for swap in (taken, case.renew(record), case.complete(record), case.release(record)):
        update = items.swap_update(swap, record.fence + 1, NOW_US, NOW_US)
        check_amazon_rules(ApiCall("update_item", update.parameters()))
