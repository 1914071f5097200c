"""Walks give hints: what is changed by one is judged again at the change."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from oncekey.core.op import run
from oncekey.core.record import State
from oncekey.core.verbs import Sweep
from oncekey.stores.redis_calls import call
from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import SyncFace


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
