"""Deprecated: import `FakeClock` from `oncekey.testing`."""

import warnings

from oncekey.testing import FakeClock

__all__ = ["FakeClock"]

warnings.warn(
    "oncekey.clock is deprecated: write `from oncekey.testing import FakeClock`",
    DeprecationWarning,
    stacklevel=2,
)
