"""Deprecated: import `Recoverer` from `oncekey`."""

import warnings

from oncekey import Recoverer

__all__ = ["Recoverer"]

warnings.warn(
    "oncekey.recoverer is deprecated: write `from oncekey import Recoverer`",
    DeprecationWarning,
    stacklevel=2,
)
