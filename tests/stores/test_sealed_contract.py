"""Sealed, every one of our stores keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from oncekey.testing.contract import Case, StoreContract, Subject
from oncekey.testing.contract.subject import FACES
from tests.stores.conftest import STORES
from tests.stores.sealed_kit import sealed
from tests.stores.test_against_memory import compare

# Over a socket the contract takes its time. `test_sealed_leaks.py` goes through every engine too.
_OFTEN = ("memory", "sqlite")
_PARAMETERS = [
    pytest.param(name, marks=pytest.mark.slow if name in _OFTEN else pytest.mark.long)
    for name in STORES
]


class TestSealedStore(StoreContract):
    @pytest.fixture(params=_PARAMETERS)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        """Each of our stores in turn, sealed."""
        plain: Subject = request.getfixturevalue(request.param)
        return sealed(plain)

    @pytest.fixture
    def case(self, subject: Subject) -> Iterator[Case]:
        """Sealing has no colour, and the store below was tried under both faces."""
        face = FACES["sync"](subject.store)
        yield Case(subject, face)
        face.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", _OFTEN)
def test_it_behaves_like_memory(request: pytest.FixtureRequest, name: str) -> None:
    compare(sealed(request.getfixturevalue(name)), "sync", examples=8)
