"""A test whose server cannot be had here is skipped, and says what would help."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.servers.programs import Unavailable


@contextmanager
def or_skip() -> Iterator[None]:
    """`with or_skip(), start_redis() as server: …`"""
    try:
        yield
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))
