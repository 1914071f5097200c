"""A Celery task that charges a card through another service's API: once, over all its retries.

    cd examples
    export SHOP_BROKER=redis://localhost:6379/0 SHOP_PAYMENTS=http://localhost:8000
    celery -A celery_charges worker
    python celery_charges.py         # in another terminal

The key is created when the task is sent and is one of its arguments: Celery's retries, redeliveries
after a lost worker and restarts all carry it. Inside the task the client retries for a few seconds;
longer outages are left to Celery, so that a service that is down does not block a worker.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import httpx2
from celery import Celery  # type: ignore[import-untyped]

from oncekey.client import Client, Retries, outcome_of

broker = os.environ.get("SHOP_BROKER", "redis://localhost:6379/0")
app = Celery("shop", broker=broker, backend=broker)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_default_queue="charges",
    task_acks_late=True,  # redelivered with the same key if the worker dies
    task_reject_on_worker_lost=True,
)
api = Client(
    base_url=os.environ.get("SHOP_PAYMENTS", "http://localhost:8000"),
    retries=Retries(attempts_max=2, budget_s=10.0, backoff_s=0.1),
)
WAIT_S = float(os.environ.get("SHOP_WAIT_S", "30"))


@app.task(name="charge", bind=True, max_retries=20)  # type: ignore[untyped-decorator]
def charge(self: Any, order: str, amount: int, key: str) -> str:
    """Runs as often as Celery delivers it; the charge happens once."""
    try:
        answer = api.post("/charges", json={"order": order, "amount": amount}, key=key)
    except (
        httpx2.TransportError
    ) as error:  # unknown whether it was charged: retry with the same key
        raise self.retry(exc=error, countdown=WAIT_S) from error
    outcome = outcome_of(answer)
    if outcome and outcome.gave_up:  # still failing after all retries: later it may work
        raise self.retry(countdown=WAIT_S)
    answer.raise_for_status()  # refused for good: the task fails
    return str(answer.json()["id"])


def enqueue(order: str, amount: int) -> Any:
    """The one place where a key is made. Store it with the order, and enqueueing twice is safe as
    well.
    """
    return charge.delay(order, amount, key=str(uuid.uuid4()))


def main() -> None:
    print(enqueue("order-17", 100).get(timeout=60))


if __name__ == "__main__":
    main()
