"""Marks: what is said of one endpoint where it is written."""

from __future__ import annotations

import pytest

from oncekey import Policy, single_tenant
from oncekey.stores.memory import MemoryStore
from oncekey.web import _decorators as marks
from oncekey.web._edge import Edge


def test_p11_methods_that_clients_invent_are_not_all_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(marks, "KNOWN_MAX", 2)
    marked = marks.Marked(Edge(store=MemoryStore(), tenant=single_tenant), None, None)
    mark = marks.Mark(Policy(required=True))
    for method in ("PUT", "A", "B", "C"):
        policy = marked.policy(mark, frozenset({method}))
        assert policy is not None
        assert (set(policy.methods), policy.required) == ({method}, True)
    assert len(marked._known) == 2
