"""Scans give hints: each change checks the record again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import pytest
from redis import Redis

from oncekey._core.op import run
from oncekey._core.record import Record, State
from oncekey._core.verbs import Due, Swap, Sweep
from oncekey.stores.redis.verbs import call
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace


def open_records(client: Any, subject: Subject) -> dict[bytes, float]:
    """Return the records in the list of those that may be abandoned, and when their leases end."""
    prefix: str = cast(Any, subject.store).prefix
    rows = client.zrange(f"{prefix}:open", 0, -1, withscores=True)
    return {bytes.fromhex(member.decode()): score / 1_000_000 for member, score in rows}


ENDS: dict[str, Callable[[Case, Record], Swap]] = {
    "complete": Case.complete,
    "release": Case.release,
    "give up": Case.give_up,
}


@pytest.mark.parametrize("how", ENDS)
def test_what_may_be_abandoned_is_listed_while_it_runs(
    redis: Subject, redis_url: str, how: str
) -> None:
    with closing(SyncFace(redis.store)) as face, Redis.from_url(redis_url) as client:
        case = Case(redis, face)
        case.begin()
        record = case.begin(case.claim(recovery="resume"))
        [(record_id, began)] = open_records(client, redis).items()
        assert record_id == record.id
        case.done(case.renew(record))
        assert open_records(client, redis)[record.id] > began
        case.lapse()
        assert open_records(client, redis)[record.id] < began
        taken = case.done(case.take(record, recovery="block"))
        assert open_records(client, redis).keys() == {record.id}
        case.done(ENDS[how](case, taken))
        assert open_records(client, redis) == {}


def test_what_is_swept_is_not_listed(redis: Subject, redis_url: str) -> None:
    with closing(SyncFace(redis.store)) as face, Redis.from_url(redis_url) as client:
        case = Case(redis, face)
        case.begin(case.claim(recovery="resume"))
        case.expire()
        assert open_records(client, redis)
        case.ask(Sweep(10))
        assert open_records(client, redis) == {}


def test_the_list_is_a_hint_that_is_put_right(redis: Subject, redis_url: str) -> None:
    """Records that an older release wrote, renewed or ended are missing or listed wrongly."""
    with closing(SyncFace(redis.store)) as face, Redis.from_url(redis_url) as client:
        case = Case(redis, face)
        begun = [case.begin(case.claim(recovery="resume")) for _ in range(3)]
        unlisted, ended, renewed = begun
        ids = {record.id for record in begun}
        open_list = f"{cast(Any, redis.store).prefix}:open"
        case.done(case.complete(ended))
        case.lapse()
        case.done(case.renew(renewed))
        client.zrem(open_list, unlisted.id.hex())
        client.zadd(open_list, {ended.id.hex(): 1, renewed.id.hex(): 2, b"00" * 32: 3})
        assert case.ask(Due(10, abandoned=True)) == [unlisted.id]
        assert open_records(client, redis).keys() == ids - {unlisted.id, ended.id}
        case.lapse()
        assert case.ask(Due(10, abandoned=True)) == [unlisted.id, renewed.id]


def test_p10_a_record_that_is_renewed_before_its_removal_stays(redis: Subject) -> None:
    store = redis.store
    with closing(SyncFace(store)) as face, closing(store.connect()) as connection:
        case = Case(redis, face)
        record = case.begin()
        case.expire()
        removals: list[Any] = []

        def ask(question: Any) -> Any:
            """Renew in the last moment: when the walk has chosen it, before it is removed."""
            removal = [command for command in question if command[: len(sweep)] == sweep]
            if removal:
                removals.extend(removal)
                case.done(case.renew(record))
            return connection.ask(question)

        sweep = call("sweep", "")[:2]
        assert run(store.perform([Sweep(10)]), ask) == [0]
        assert removals
        assert case.find(record.id).state is State.RUNNING
