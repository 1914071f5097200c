"""Scopes: which names of tenants and operations every store keeps as they are."""

from __future__ import annotations

import math
import re

TENANT_CHARS_MAX = 1_000
OPERATION_CHARS_MAX = 10_000
"""Not every server limits the path, which is the name of what no route template matches."""

# No store keeps these in a text, and replacing them would make different names equal.
_UNREADABLE = re.compile("[\0\ud800-\udfff]")


def is_kept(name: object, chars_max: float = math.inf) -> bool:
    """Whether every store gives it back as it is."""
    return isinstance(name, str) and len(name) <= chars_max and not _UNREADABLE.search(name)
