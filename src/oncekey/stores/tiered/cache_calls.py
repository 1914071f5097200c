"""What a tiered store asks its cache, beside what it asks the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oncekey._core.values import value

if TYPE_CHECKING:
    from oncekey.stores.redis.verbs import Command


@value
class Cached:
    """A question to the cache. → the replies; None if there are none, unless they are `needed`."""

    commands: list[Command]
    needed: bool = False
