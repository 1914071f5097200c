"""Reuse: the caller's own mistake of sending two different requests under one key.

A server that compares refuses the second one; a server that does not answers it with the first
one's outcome, and nobody notices. So it is noticed here, as far back as a bounded memory goes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from oncekey._core.fingerprint import Fingerprint
from oncekey._core.key import short_hash

KEYS_MAX = 1024


class Reuse:
    """Remembers which request a key came with; for all threads."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._seen: OrderedDict[str, bytes] = OrderedDict()
        self._alone = threading.Lock()

    def differs(self, origin: str, key: str, fingerprint: Fingerprint) -> bool:
        """Whether this key was last seen here, at this origin, with another request."""
        name = short_hash(f"{origin} {key}")
        with self._alone:
            before = self._seen.pop(name, None)
            self._seen[name] = fingerprint.digest
            if len(self._seen) > self._keys_max:
                self._seen.popitem(last=False)
        return before is not None and before != fingerprint.digest
