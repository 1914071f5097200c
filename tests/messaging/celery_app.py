"""The Celery application that the tests run a real worker of.

Every effect is one line in a ledger file, written at once: it survives the death of its process.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-untyped]

import oncekey
from oncekey import Policy, Runtime
from oncekey.messaging.celery import once_task

broker = os.environ["SHOP_BROKER"]
ledger = Path(os.environ["SHOP_LEDGER"])
app = Celery("shop", broker=broker, backend=broker)
app.conf.update(
    task_default_queue=os.environ["SHOP_QUEUE"],
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": 2,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    worker_prefetch_multiplier=1,
)
runtime = Runtime(os.environ["SHOP_STORE"])
policy = Policy(lease_s=1.0)  # for tasks whose worker dies: so long nobody takes them over


def effect(**what: Any) -> str:
    with open(ledger, "ab", buffering=0) as file:
        file.write(json.dumps(what).encode() + b"\n")
    return "done"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="ship", base=once_task(runtime, policy=policy))  # type: ignore[untyped-decorator]
def ship(order: str) -> dict[str, Any]:
    effect(task="ship", order=order)
    return {"order": order, "pid": os.getpid()}


@app.task(  # type: ignore[untyped-decorator]
    name="pay", bind=True, max_retries=2, base=once_task(runtime, key="{order}/pay", policy=policy)
)
def pay(
    self: Any, order: str, *, dies: int = 0, stays: int = 0, retries: int = 0
) -> dict[str, Any]:
    """Charge in a step, so that an attempt that died after it does not charge again."""
    attempt = oncekey.current()
    charged = attempt.step_sync("charge", lambda: effect(task="pay", order=order))
    if attempt.attempt <= dies:
        die()
    if attempt.attempt <= stays:
        time.sleep(60)
    if self.request.retries < retries:
        raise self.retry(countdown=0)
    return {"charge": charged, "attempt": attempt.attempt, "lapses": attempt.lapses}


@app.task(  # type: ignore[untyped-decorator]
    name="mail",
    base=once_task(runtime, key="{order}", policy=Policy(lease_s=1.0, recovery="block")),
)
def mail(order: str) -> None:
    effect(task="mail", order=order)
    die()


@app.task(name="hold", base=once_task(runtime))  # type: ignore[untyped-decorator]
def hold(sign: str) -> str:
    """Begun, until a file appears."""
    effect(task="hold", sign=sign)
    while not Path(sign).exists():
        time.sleep(0.01)
    return "held"
