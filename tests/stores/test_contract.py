"""Every one of our stores keeps the contract, asked by threads and by event loops."""

from __future__ import annotations

import pytest

from oncekey.testing.contract import StoreContract, Subject
from tests.stores.conftest import MORE


class TestStore(StoreContract):
    """Over each store in the table of conftest.py."""


@pytest.mark.long
class TestMore(StoreContract):
    """Over what keeps records another way, or leads to them by another. `test_redis_cluster.py` has
    a cluster.
    """

    @pytest.fixture(params=MORE)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        subject: Subject = request.getfixturevalue(request.param)
        return subject
