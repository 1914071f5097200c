"""Sealed, each of our stores keeps the contract."""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet

from oncekey.testing.contract import StoreContract, Subject
from tests.stores.conftest import MORE, STORES
from tests.stores.sealed.kit import sealed_subject
from tests.stores.test_against_memory import compare

# The contract is slow over a socket. `test_leaks.py` runs every engine too.
_OFTEN = ("memory", "sqlite")
_EVERY: list[ParameterSet] = [
    pytest.param(name, marks=pytest.mark.slow if name in _OFTEN else pytest.mark.long)
    for name in (*STORES, "cluster", *MORE)
]


@pytest.mark.timeout(300)
class TestSealedStore(StoreContract):
    @pytest.fixture(params=_EVERY)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        """Each of our stores in turn, sealed."""
        plain: Subject = request.getfixturevalue(request.param)
        return sealed_subject(plain)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("colour", ["sync", pytest.param("async", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", _EVERY)
def test_it_behaves_like_memory(request: pytest.FixtureRequest, name: str, colour: str) -> None:
    compare(
        sealed_subject(request.getfixturevalue(name)), colour, examples=8 if name in _OFTEN else 4
    )
