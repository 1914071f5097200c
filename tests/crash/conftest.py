"""The crash tests run on every store on which several processes can meet."""

from pathlib import Path

import pytest

from tests.places import place

__all__ = ["place"]

HERE = Path(__file__).parent

# A process needs a second of a CPU for DynamoDB's driver alone: most of it is for the long run.
_USUAL = ("test_p6_a_killed_process_is_taken_over", "test_p2_a_frozen_process_wakes")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        ours = item.path.parent == HERE and "[dynamodb" in item.name
        if ours and not item.name.startswith(_USUAL):
            item.add_marker(pytest.mark.long)
