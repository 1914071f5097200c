"""Values: dataclasses that never change.

The type checker refuses every assignment to a field, as for a frozen dataclass. At run time they
are not frozen, because making a frozen dataclass takes three times as long, and a request makes a
dozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make a class a value: write `@value` instead of `@dataclass(frozen=True, slots=True)`."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
