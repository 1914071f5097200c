"""Every one of our stores keeps the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from oncekey.testing.contract import Case, StoreContract, Subject
from oncekey.testing.contract.subject import FACES


class TestStore(StoreContract):
    """Over each store in the table of conftest.py."""


# Where answers lie apart is for `test_postgres_layout.py`, a cluster for `test_redis_cluster.py`. A
# tiered store is tried with both faces by `test_tiered.py`: here each of its truths has one.
_WAYS = [("sentinel", "sync"), ("sentinel", "async")]
_WAYS += [("tiered", "async"), ("tiered_over_mariadb", "sync")]


@pytest.mark.long
@pytest.mark.parametrize(("subject", "face"), _WAYS, indirect=["subject"])
class TestMore(StoreContract):
    """Over what leads to one of them by another way."""

    @pytest.fixture
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        subject: Subject = request.getfixturevalue(request.param)
        return subject

    @pytest.fixture
    def case(self, subject: Subject, face: str) -> Iterator[Case]:
        with closing(FACES[face](subject.store)) as asked:
            yield Case(subject, asked)
