"""The counts of calls are exact: two runs of the same code agree."""

from __future__ import annotations

import logging

import pytest

from bench import calls


@pytest.mark.slow
def test_two_traces_of_the_same_code_agree() -> None:
    before, after = calls.traces(), calls.traces()
    assert before == after
    assert logging.getLogger("oncekey.store").level == logging.NOTSET
    first, replay = before["first"], before["replay"]
    assert first.calls[0] == calls.Call("IdempotencyMiddleware.__call__", "web/asgi.py")
    assert len(first.calls) > len(replay.calls) > 0
    assert 0 < first.file_changes() < len(first.calls)


def test_a_trace_counts_changes_of_file() -> None:
    called = [calls.Call("f", "a.py"), calls.Call("g", "a.py"), calls.Call("h", "b.py")]
    trace = calls.Trace([*called, called[0]])
    assert trace.file_changes() == 2
    assert trace.files() == 2
    assert trace.text().splitlines()[2] == "   3 h b.py"
