"""Deprecated: import `full_jitter` from `oncekey.client`."""

import warnings

from oncekey.client import full_jitter

__all__ = ["full_jitter"]

warnings.warn(
    "oncekey.core.backoff is deprecated: write `from oncekey.client import full_jitter`",
    DeprecationWarning,
    stacklevel=2,
)
