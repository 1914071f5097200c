"""What several processes share is tried on every store on which several processes can meet."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import PLACES, Place, met_at

_QUICK, _SLOW = ("sqlite", "postgres", "redis"), ("mariadb", "dynamodb")
_LONG = [name for name in PLACES if name not in (*_QUICK, *_SLOW)]


@pytest.fixture(
    params=[
        *_QUICK,
        *(pytest.param(name, marks=pytest.mark.slow) for name in _SLOW),
        *(pytest.param(name, marks=pytest.mark.long) for name in _LONG),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with met_at(request.param, request, tmp_path) as place:
        yield place
