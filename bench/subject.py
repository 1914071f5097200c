"""What every subject needs: a result for whatever could not be measured."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from bench.table import Goal, Row
from tests.servers import Unavailable

failures: list[str] = []
"""What broke, as opposed to what cannot be had here: a run that has any is no success."""


def measured(what: str, rows: Callable[[], list[Row]], goal: Goal | None = None) -> list[Row]:
    """The rows, or one that says why there are none."""
    try:
        return rows()
    except Unavailable as reason:
        return [Row(what, goal=goal, missing=str(reason))]
    except Exception as error:
        traceback.print_exc()
        failures.append(what)
        return [Row(what, goal=goal, missing=f"it failed: {error!r}")]
