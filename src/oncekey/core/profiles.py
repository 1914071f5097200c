"""Deprecated: import `BodyField`, `Header` and `QueryParameter` from `oncekey`."""

import warnings

from oncekey import BodyField, Header, QueryParameter

__all__ = ["BodyField", "Header", "QueryParameter"]

warnings.warn(
    "oncekey.core.profiles is deprecated: write "
    "`from oncekey import BodyField, Header, QueryParameter`",
    DeprecationWarning,
    stacklevel=2,
)
