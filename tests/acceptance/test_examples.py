"""The example applications, each on a real server: a client sees the same of all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from examples import fastapi_orders, flask_orders
from tests.acceptance import django_orders
from tests.acceptance.client import Client
from tests.acceptance.serve import serving, serving_wsgi
from tests.acceptance.shop import WAIT_S_MAX, kept
from tests.web.client import Reply

pytestmark = pytest.mark.slow

TEA = {"item": "tea", "quantity": 2}
ANN, ANN_AGAIN, BOB = "Bearer ann-1", "Bearer ann-2", "Bearer bob-1"


class Provider:
    """Charges cards, and can be told to fail, or to take its time."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.fails = 0
        self.started, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def charge(self, account: str, amount: int, key: str) -> str:
        self.keys.append(key)
        self.started.set()
        assert self.go_on.wait(WAIT_S_MAX)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("the provider does not answer")
        return f"ch_{len(self.keys)}"


class Example:
    """One of the applications, as a client sees it."""

    def __init__(self, client: Client, provider: Provider, data: Path) -> None:
        self.client, self.provider, self.data = client, provider, data

    def order(self, key: str | None, body: Any = TEA, who: str | None = ANN) -> Reply:
        headers = [] if who is None else [("Authorization", who)]
        return self.client.ask(key, body, headers=headers)

    def orders(self) -> Any:
        return self.client.ask(method="GET", headers=[("Authorization", ANN)]).json()

    def records(self) -> list[str]:
        files = [file for file in self.data.iterdir() if file.name in ("keys.db", "orders.db")]
        file = min(files, key=lambda file: file.name)  # some keep both in one
        return [record.state.value for record in kept(f"sqlite:///{file}")]


Serve = Callable[[Path, Provider], AbstractContextManager[Client]]


def fastapi(data: Path, provider: Provider) -> AbstractContextManager[Client]:
    return serving(fastapi_orders.build(data, provider.charge))


def flask(data: Path, provider: Provider) -> AbstractContextManager[Client]:
    return serving_wsgi(flask_orders.build(data, provider.charge))


def django(data: Path, provider: Provider) -> AbstractContextManager[Client]:
    return django_orders.served(data, provider.charge, awaited=False)


def django_by_asgi(data: Path, provider: Provider) -> AbstractContextManager[Client]:
    return django_orders.served(data, provider.charge, awaited=True)


@pytest.fixture(params=[fastapi, flask, django, django_by_asgi], ids=lambda serve: serve.__name__)
def example(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Example]:
    provider = Provider()
    serve: Serve = request.param
    with serve(tmp_path, provider) as client:
        try:
            yield Example(client, provider, tmp_path)
        finally:
            provider.go_on.set()


def test_p3_a_retry_gets_the_first_answer(example: Example) -> None:
    first, again = example.order("k1"), example.order("k1", who=ANN_AGAIN)
    assert (first.status, first.json()["charge"], first.replayed) == (201, "ch_1", False)
    assert (again.status, again.body, again.replayed) == (201, first.body, True)
    assert len(example.provider.keys) == len(example.orders()) == 1


def test_p5_another_order_with_the_same_key_is_refused(example: Example) -> None:
    example.order("k1")
    other = example.order("k1", {"item": "coffee"})
    assert (other.status, other.kind, len(example.orders())) == (422, "mismatch", 1)


def test_e31_a_duplicate_in_flight_is_refused(example: Example) -> None:
    example.provider.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(example.order, "k1")
        assert example.provider.started.wait(WAIT_S_MAX)
        refused = example.order("k1")
        example.provider.go_on.set()
        assert first.result().status == 201
    assert (refused.status, refused.kind) == (409, "in-flight")
    assert example.order("k1").replayed


def test_e40_p7_a_mistake_in_the_order_can_be_corrected_with_the_same_key(
    example: Example,
) -> None:
    refused = example.order("k1", {"quantity": -1})
    assert (refused.status, example.records()) == (422, [])
    assert example.order("k1").status == 201


def test_p7_a_request_without_login_or_permission_spends_nothing(example: Example) -> None:
    assert example.order("k1", who=None).status == 401
    assert example.order("k1", who=BOB).status == 403
    assert example.records() == []
    assert example.order("k1").status == 201
    assert example.order("k1", who=None).status == 401, "a replay is for those who may have it"
    assert example.order("k1", who=BOB).status == 403


def test_e38_what_failed_is_tried_again_under_the_same_key_downstream(example: Example) -> None:
    example.provider.fails = 1
    assert example.order("k1").status == 500
    again = example.order("k1")
    assert (again.status, again.replayed, len(example.orders())) == (201, False, 1)
    [first_key, second_key] = example.provider.keys
    assert first_key == second_key


def test_a_key_is_required(example: Example) -> None:
    missing = example.order(None)
    assert (missing.status, missing.kind, example.provider.keys) == (400, "missing-key", [])
