"""What every subject needs: a row for whatever could not be measured."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from bench.table import Goal, Row
from tests.servers import Unavailable

failures: list[str] = []
"""Subjects that broke, as opposed to those this machine cannot run: any of them fails the run."""


def try_rows(what: str, rows: Callable[[], list[Row]], goal: Goal | None = None) -> list[Row]:
    """Return the rows, or one row that says why there are none."""
    try:
        return rows()
    except Unavailable as reason:
        return [Row(what, goal=goal, missing=str(reason))]
    except Exception as error:
        traceback.print_exc()
        failures.append(what)
        return [Row(what, goal=goal, missing=f"it failed: {error!r}")]
