from collections.abc import Iterator

import pytest

from tests.client.browser.node import Node
from tests.servers.programs import Unavailable


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """The module in a real Node, in virtual time."""
    try:
        with Node() as node:
            yield node
    except Unavailable as unavailable:
        pytest.skip(str(unavailable))
