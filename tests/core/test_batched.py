"""So many at a time: nothing is lost, nothing comes twice, nobody gets an empty batch."""

import pytest

from oncekey._core.batched import batched


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, 3])
def test_all_come_once_and_in_order(count: int, size: int) -> None:
    batches = list(batched(range(count), size))
    assert [each for batch in batches for each in batch] == list(range(count))
    assert all(len(batch) == size for batch in batches[:-1])
    assert all(batches)
