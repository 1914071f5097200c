"""Who can run an operation again: found by the store, as everybody names it."""

from __future__ import annotations

from pathlib import Path

from oncekey._engine.registry import Orphan, registries, registry_of
from oncekey._engine.runtime import Runtime
from oncekey.stores.memory import MemoryStore
from tests.orphans import Shop, service


def test_the_same_url_is_the_same_registry(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"

    assert Runtime(url).registry is registry_of(url)
    assert registry_of(f"sqlite:///{tmp_path / 'others.db'}") is not registry_of(url)


def test_the_same_store_is_the_same_registry() -> None:
    store = MemoryStore()

    assert Runtime(store).registry is registry_of(store)
    assert registry_of(MemoryStore()) is not registry_of(MemoryStore())


def test_memory_by_its_url_is_another_store_each_time() -> None:
    assert Runtime("memory://").registry is not registry_of("memory://")


def test_only_those_are_listed_that_somebody_registered_with() -> None:
    empty, shopping = Runtime(MemoryStore()), service(Shop())

    assert shopping.edge.runtime.registry in registries()
    assert empty.registry not in registries()


def test_of_several_runners_the_newest_counts() -> None:
    store = MemoryStore()
    old, new = service(Shop(), store=store), service(Shop(), store=store)
    call, _ = old.call("k", {}, "/pay", ())
    attempt = old.begin("k", {})
    orphan = Orphan(old.look(attempt.held.id), call.request, 0.0)
    registry = old.edge.runtime.registry

    owner = registry.owner(orphan)

    assert owner is not None
    assert owner.guard is new.edge.guard
    assert registry.owner(Orphan(orphan.record, None, 0.0)) is None
    assert registry.owner(Orphan(orphan.record, b"nothing that is a request", 0.0)) is None
