"""What a seed says of a soak: the same faults and the same orders, each time."""

from __future__ import annotations

import pytest

from soak import engines
from soak.clients import order_of
from soak.faults import CLOCK_FAULTS, WORKER_FAULTS, plan, store_faults
from soak.handler import HOWS, STEP


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_a_seed_plans_the_same_faults(engine: str) -> None:
    planned = plan(7, 300.0, engine)
    assert planned == plan(7, 300.0, engine)
    assert planned != plan(8, 300.0, engine)
    clocks = () if engine == "sqlite" else CLOCK_FAULTS
    assert {fault.what for fault in planned} == {*WORKER_FAULTS, *store_faults(engine), *clocks}
    assert {fault.which % 6 for fault in planned} == {*range(6)}
    assert all(0 <= fault.after_s < 300 for fault in planned)


def test_a_seed_makes_the_same_orders_and_accounts_share_keys() -> None:
    routes = ("rerun", "block", "atomic")
    orders = [order_of(7, number, routes) for number in range(200)]
    assert orders == [order_of(7, number, routes) for number in range(200)]
    assert {order.id.route for order in orders} == set(routes)
    failing = [order for order in orders if order.failures]
    assert {order.how for order in failing if order.id.route == "block"} == {*HOWS} - {STEP}
    assert all(order.id.route != "atomic" for order in failing)
    assert orders[4].id.key == orders[5].id.key
    assert len({order.id for order in orders}) == len(orders)
