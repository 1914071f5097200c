"""Deprecated: import `Kind` from `oncekey`."""

import warnings

from oncekey import Kind

__all__ = ["Kind"]

warnings.warn(
    "oncekey.core.problem is deprecated: write `from oncekey import Kind`",
    DeprecationWarning,
    stacklevel=2,
)
