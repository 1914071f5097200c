from collections.abc import Iterator

import pytest

from tests.client.browser.node import Node
from tests.servers.skipping import or_skip


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """The module in a real Node, in virtual time."""
    with or_skip(), Node() as node:
        yield node
