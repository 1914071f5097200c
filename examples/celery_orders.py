"""A Celery application whose tasks take effect once, however often they are delivered.

    cd examples
    export SHOP_BROKER=redis://localhost:6379/0
    celery -A celery_orders worker
    python celery_orders.py          # in another terminal, as often as you like

Kill the worker with -9 in the middle of a task and start it again: the order is shipped once.
"""

from __future__ import annotations

import os
from typing import Any

from celery import Celery  # type: ignore[import-untyped]

import oncekey
from oncekey.messaging.celery import once_task

broker = os.environ.get("SHOP_BROKER", "redis://localhost:6379/0")
app = Celery("shop", broker=broker, backend=broker)
app.conf.broker_connection_retry_on_startup = True
runtime = oncekey.Runtime(os.environ.get("SHOP_STORE", "sqlite:///keys.db"))


def carrier(key: str, order_id: str) -> str:
    """Stands for a service that takes an idempotency key."""
    print(f"shipping {order_id} with key {key}")
    return f"parcel_{key[:8]}"


@app.task(name="ship", base=once_task(runtime, key="{order_id}/ship"))  # type: ignore[untyped-decorator]
def ship(order_id: str) -> dict[str, Any]:
    """Once per order. A task that dies between the carrier's answer and ours asks again by the
    same key.
    """
    op = oncekey.current()
    return {"parcel": op.step_sync("carrier", carrier, op.child_key("carrier"), order_id)}


def main() -> None:
    for _ in range(3):
        print(ship.delay("order-17").get(timeout=30))


if __name__ == "__main__":
    main()
