"""Deprecated: import `arm` and `disarm` from `oncekey.testing`."""

import warnings

from oncekey.testing import arm, disarm

__all__ = ["arm", "disarm"]

warnings.warn(
    "oncekey.probes is deprecated: write `from oncekey.testing import arm, disarm`",
    DeprecationWarning,
    stacklevel=2,
)
