"""The runtime: what it says when it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncekey import Runtime

TOLD = "records are kept in this process only"


def test_a_store_that_no_other_process_knows_of_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each worker of a server would have its own, and a retry run again in another one."""
    with Runtime("memory://") as runtime:
        assert TOLD not in caplog.text  # it is not used yet
        for _ in range(2):
            runtime.start()
    assert caplog.text.count(TOLD) == 1


def test_of_any_other_nothing_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Runtime(f"sqlite:///{tmp_path}/keys.db") as runtime:
        runtime.start()
    assert TOLD not in caplog.text
