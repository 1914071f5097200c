"""The whole system as processes, and Stripe's clients for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from payments.access.accounts import LOCAL_KEY
from tests.payments.acceptance.faulty_proxy import FaultyProxy
from tests.payments.acceptance.sdk import SDKS, Sdk
from tests.payments.card_network import CardNetwork
from tests.payments.serve_command import ServeCommand
from tests.servers.skipping import or_skip


@dataclass(frozen=True, slots=True)
class Shop:
    """The API and the card network, each a process of its own."""

    api: ServeCommand
    network: CardNetwork


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    with CardNetwork(folder) as network:
        words = ["--network", network.url, "--webhook-network", "127.0.0.0/8"]
        words += ["--limit", "POST tokens=1/day", "--wait-s", "0.5"]
        with closing(ServeCommand(folder / "data", *words)) as api:
            yield Shop(api, network)


def open_(name: str, port: int, api_key: str = LOCAL_KEY) -> Sdk:
    with or_skip():
        return SDKS[name](port, api_key)


@pytest.fixture(scope="module", params=list(SDKS))
def sdk(request: pytest.FixtureRequest, shop: Shop) -> Iterator[Sdk]:
    """Each of the clients in turn."""
    with closing(open_(request.param, shop.api.port)) as sdk:
        yield sdk


@pytest.fixture
def line(shop: Shop) -> Iterator[FaultyProxy]:
    """To the API, and it breaks when told to."""
    with FaultyProxy(shop.api.port) as line:
        yield line


@pytest.fixture(params=list(SDKS))
def over(request: pytest.FixtureRequest, line: FaultyProxy) -> Iterator[Sdk]:
    """Each of the clients in turn, over that line."""
    with closing(open_(request.param, line.port)) as sdk:
        yield sdk
