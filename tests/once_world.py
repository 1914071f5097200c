"""A runtime for tests of `@once`, its runs, and a way to die in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from oncekey import Runtime, once
from oncekey._core.key import record_id
from oncekey._core.op import Op
from oncekey._core.record import Record
from oncekey._core.verbs import Find
from oncekey._engine.session import Session
from oncekey._system.clock import FakeClock
from oncekey.stores.memory import MemoryStore

END_S_MAX = 20.0


class World:
    """A runtime on a store whose clock is in the test's hands, and the runs that it counts."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.runtime = Runtime(self.store, clock=self.clock)
        self.runs: list[Any] = []

    def once(self, function: Callable[..., Any], key: Any = "{x}", **settings: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.runs.append(args)
            return function(*args, **kwargs)

        counted.__wrapped__ = function  # type: ignore[attr-defined]
        return once(self.runtime, key=key, name="f", **settings)(counted)

    def look(self, key: str, tenant: str = "single") -> Record | None:
        record: Record | None = self.runtime.gatherer.ask(Find(record_id(tenant, "f", key)))
        return record

    @contextmanager
    def death(self) -> Iterator[None]:
        """Whoever is called within dies before the function runs, and its lease runs out."""

        opened = Session.open

        def die(session: Session) -> Op[Any]:
            yield from opened(session)
            session.close()
            raise Death

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Session, "open", die)
            with pytest.raises(Death):
                yield
        self.clock.advance(31)


class Death(BaseException):
    """Nothing is cleaned up."""


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.runtime.close()
