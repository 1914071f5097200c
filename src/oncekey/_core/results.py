"""Results as they are kept: JSON, so that the next release can read them too."""

from __future__ import annotations

import json
from typing import Any

from oncekey.errors import Misuse


def encode(what: str, result: Any, bytes_max: int) -> bytes:
    """A result as JSON. `what` names in messages whose it is."""
    try:
        text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misuse(
            f"{what} returned what JSON cannot keep ({error}): return text, numbers, lists and "
            "dicts, and of those only what is needed later"
        ) from error
    kept = text.encode()
    if len(kept) > bytes_max:
        raise Misuse(f"{what} returned {len(kept)} bytes, more than {bytes_max}")
    return kept
