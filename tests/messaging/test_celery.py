"""Celery, with a real worker and a real broker: redelivered tasks have their effect once."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from celery import Celery  # type: ignore[import-untyped]
from celery.exceptions import (  # type: ignore[import-untyped]
    Reject,
    Retry,
    SoftTimeLimitExceeded,
)
from redis import Redis

from oncekey import InFlight, Mismatch, Misuse, Policy, Runtime, Unknown, current, once
from oncekey._core.record import State
from oncekey._core.verbs import Scan
from oncekey.messaging.celery import OnceTask, once_task

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ANSWER_S_MAX = 20.0


class Shop:
    """A worker as a child process, and this process as its client."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.ledger = folder / "ledger"
        self.log = folder / "log"
        self.environment = {
            "SHOP_BROKER": broker,
            "SHOP_LEDGER": str(self.ledger),
            "SHOP_QUEUE": f"shop-{uuid.uuid4().hex}",
            "SHOP_STORE": f"sqlite:///{folder / 'keys.db'}",
        }
        os.environ.update(self.environment)
        self.app: Any = importlib.import_module("tests.messaging.celery_app")
        self.workers: list[subprocess.Popen[bytes]] = []

    def work(self, children: int = 1) -> subprocess.Popen[bytes]:
        app = "tests.messaging.celery_app"
        options = ["--pool", "prefork", "--concurrency", str(children), "--loglevel", "info"]
        options += ["--without-heartbeat", "--without-gossip", "--without-mingle"]
        with open(self.log, "ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", app, "worker", *options],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.workers.append(worker)
        return worker

    def idle(self) -> bool:
        """Whether the broker has nothing more to deliver, and nothing that is not acknowledged."""
        with Redis.from_url(self.environment["SHOP_BROKER"]) as broker:
            return not broker.llen(self.environment["SHOP_QUEUE"]) and not broker.hlen("unacked")

    def effects(self, **like: Any) -> int:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return sum(like.items() <= json.loads(line).items() for line in lines)

    def close(self) -> None:
        for worker in self.workers:
            kill_all(worker)
        self.app.runtime.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ANSWER_S_MAX
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def kill_all(worker: subprocess.Popen[bytes]) -> None:
    """The worker and its pool, at once, as if the machine had lost power."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("shop"), redis_url)
    shop.work()
    yield shop
    shop.close()


@pytest.fixture
def order() -> str:
    return uuid.uuid4().hex


def test_a_task_delivered_twice_runs_once(shop: Shop, order: str) -> None:
    task_id = str(uuid.uuid4())
    first = shop.app.ship.apply_async((order,), task_id=task_id).get(ANSWER_S_MAX)
    again = shop.app.ship.apply_async((order,), task_id=task_id)
    marker = shop.app.ship.delay(order + "-next").get(ANSWER_S_MAX)  # one worker, in order

    assert marker["order"] == order + "-next"
    assert again.get(ANSWER_S_MAX) == first
    assert shop.effects(task="ship", order=order) == 1


def test_what_nobody_has_decided_is_warned_of_once_and_not_by_each_child(
    shop: Shop, tmp_path: Path
) -> None:
    other, sign = shop.work(children=3), tmp_path / "sign"
    results = [shop.app.hold.delay(str(sign)) for _ in range(4)]
    until(lambda: shop.effects(task="hold", sign=str(sign)) == 4)  # each in a child of its own
    sign.touch()
    assert [result.get(ANSWER_S_MAX) for result in results] == ["held"] * 4
    told = [line for line in shop.log.read_text().splitlines() if "while it runs hold" in line]
    assert ["WARNING/MainProcess" in line for line in told] == [True] * len(shop.workers)
    kill_all(other)


def test_a_key_expression_makes_different_tasks_one(shop: Shop, order: str) -> None:
    results = [shop.app.pay.delay(order) for _ in range(3)]

    assert len({json.dumps(result.get(ANSWER_S_MAX)) for result in results}) == 1
    assert shop.effects(task="pay", order=order) == 1


def test_p6_a_worker_killed_in_the_middle_is_taken_over_and_no_step_is_repeated(
    shop: Shop, order: str
) -> None:
    result = shop.app.pay.delay(order, dies=1).get(ANSWER_S_MAX)

    assert result == {"charge": "done", "attempt": 2, "lapses": 1}
    assert shop.effects(task="pay", order=order) == 1


def test_celerys_own_retries_keep_the_key(shop: Shop, order: str) -> None:
    result = shop.app.pay.delay(order, retries=2).get(ANSWER_S_MAX)

    assert result == {"charge": "done", "attempt": 3, "lapses": 0}
    assert shop.effects(task="pay", order=order) == 1


def test_a_delivery_while_the_first_still_runs_is_put_off(
    shop: Shop, order: str, tmp_path: Path
) -> None:
    """As after a broker's visibility timeout; it spends none of the task's own retries."""
    sign, other = tmp_path / "sign", shop.work()
    task_id = str(uuid.uuid4())
    first = shop.app.hold.apply_async((str(sign),), task_id=task_id)
    until(lambda: shop.effects(task="hold", sign=str(sign)) == 1)
    shop.app.hold.apply_async((str(sign),), task_id=task_id)
    until(lambda: "hold is put off" in shop.log.read_text())
    sign.touch()

    assert first.get(ANSWER_S_MAX) == "held"
    until(lambda: shop.idle())
    assert shop.effects(task="hold", sign=str(sign)) == 1
    kill_all(other)


def test_p6_a_worker_lost_with_its_machine_is_replaced(shop: Shop, order: str) -> None:
    """Nobody is left to give the task back: the broker does, after its visibility timeout."""
    task = shop.app.pay.delay(order, stays=1)
    until(lambda: shop.effects(task="pay", order=order) == 1)
    kill_all(shop.workers[0])
    shop.work()

    assert task.get(ANSWER_S_MAX) == {"charge": "done", "attempt": 2, "lapses": 1}
    assert shop.effects(task="pay", order=order) == 1


def test_an_unknown_outcome_fails_the_task_loudly(shop: Shop, order: str) -> None:
    with pytest.raises(Unknown, match="nobody knows"):
        shop.app.mail.delay(order).get(ANSWER_S_MAX)
    assert shop.effects(task="mail", order=order) == 1


def test_p5_a_key_used_with_other_arguments_fails_the_task(shop: Shop, order: str) -> None:
    shop.app.pay.delay(order).get(ANSWER_S_MAX)
    with pytest.raises(Mismatch):
        shop.app.pay.delay(order, retries=1).get(ANSWER_S_MAX)
    assert shop.effects(task="pay", order=order) == 1


# ----------------------------------------------------------------------------------- misuse


def test_a_task_that_is_called_directly_has_no_id(shop: Shop, order: str) -> None:
    with pytest.raises(Misuse, match="task id"):
        shop.app.ship(order)


def test_a_task_with_a_key_may_be_called_directly(shop: Shop, order: str) -> None:
    assert shop.app.pay(order)["attempt"] == 1
    assert shop.app.pay(order)["attempt"] == 1
    assert shop.effects(task="pay", order=order) == 1


@pytest.mark.parametrize(
    ("base", "options", "says"),
    [
        (once_task(Runtime("memory://")), {"acks_late": False}, "acks_late"),
        (once_task(Runtime("memory://"), key="{order}"), {}, "wants 'order'"),
        (once_task("memory://"), {}, "oncekey.Runtime"),  # type: ignore[arg-type]
        (OnceTask, {}, "once_task"),
    ],
    ids=["acknowledged early", "no such argument", "no runtime", "no settings"],
)
def test_wrong_settings_are_told_when_the_task_is_made(
    base: Any, options: dict[str, Any], says: str
) -> None:
    def task(number: int) -> int:
        return number

    app = Celery("t", set_as_current=False)
    with pytest.raises(Misuse, match=says):
        app.task(base=base, lazy=False, **options)(task)


def test_a_base_in_place_of_a_decorator_and_a_guard_above_the_task_are_told() -> None:
    """Of the latter workers would know nothing: they find the task by its name, unguarded."""

    def task(number: int) -> int:
        return number

    runtime, app = Runtime("memory://"), Celery("t", set_as_current=False)
    with pytest.raises(Misuse, match=r"makes a base class: @app\.task\(base=once_task"):
        once_task(runtime)(task)
    for made in (app.task(task), app.task(lazy=False, name="other")(task)):
        with pytest.raises(Misuse, match=r"@oncekey\.once stands below @app\.task"):
            once(runtime, key="{number}")(made)


@pytest.mark.parametrize("bind", [True, False])
def test_a_task_that_would_never_run_is_refused(bind: bool) -> None:
    def task(*given: int) -> Iterator[int]:
        yield from given

    app = Celery("t", set_as_current=False)
    with pytest.raises(Misuse, match="task is a generator"):
        app.task(base=once_task(Runtime("memory://")), lazy=False, bind=bind)(task)


def test_a_task_that_runs_eagerly_is_refused_to_its_caller() -> None:
    runtime, app = Runtime("memory://"), Celery("t", set_as_current=False)
    app.conf.task_always_eager = True

    @app.task(name="outer", base=once_task(runtime, key="{x}"))  # type: ignore[untyped-decorator]
    def outer(x: int) -> str:
        return type(outer.delay(x).result).__name__

    assert outer.delay(1).get() == InFlight.__name__
    runtime.close()


def test_a_task_that_calls_itself_is_not_delivered_to_itself() -> None:
    """What is refused to the inner call must not put off, or be taken for, the outer one."""
    runtime, app = Runtime("memory://"), Celery("t", set_as_current=False)
    app.conf.task_always_eager = True

    @app.task(name="walk", bind=True, base=once_task(runtime, key="{n}"))  # type: ignore[untyped-decorator]
    def walk(self: Any, n: int) -> list[bool]:
        return [self.request.called_directly, *(walk(n - 1) if n else [])]

    @app.task(name="ride", base=once_task(runtime))  # type: ignore[untyped-decorator]
    def ride(n: int) -> Any:
        return ride(n - 1)

    assert walk.delay(2).get() == [False, True, True]
    with pytest.raises(Misuse, match="a direct call has none"):
        ride.delay(2).get()
    runtime.close()


def test_p5_the_arguments_say_whose_a_task_is_and_which_of_them_count() -> None:
    runtime, app = Runtime("memory://"), Celery("t", set_as_current=False)
    app.conf.task_always_eager = True
    base = once_task(
        runtime, key="{order}", tenant="{shop}", fingerprint=lambda order, cents: [order, cents]
    )
    runs: list[str] = []

    @app.task(name="charge", base=base)  # type: ignore[untyped-decorator]
    def charge(shop: str, order: str, cents: int, sent_at: float) -> str:
        runs.append(f"{shop} {order} {cents}")
        return runs[-1]

    assert charge.delay("east", "17", 500, sent_at=1.0).get() == "east 17 500"
    assert charge.delay("east", "17", 500, sent_at=2.0).get() == "east 17 500"
    assert charge.delay("west", "17", 700, sent_at=3.0).get() == "west 17 700"
    with pytest.raises(Mismatch):
        charge.delay("east", "17", 700, sent_at=4.0).get()
    assert runs == ["east 17 500", "west 17 700"]
    runtime.close()


@pytest.mark.parametrize(("recovery", "then"), [("rerun", "charged"), ("block", "Unknown")])
@pytest.mark.parametrize("cause", [SoftTimeLimitExceeded, TimeoutError, partial(Reject, "no")])
def test_p6_under_block_a_task_that_broke_is_never_run_again(
    recovery: Any, then: str, cause: Any
) -> None:
    runtime, app = Runtime("memory://"), Celery("t", set_as_current=False)
    app.conf.task_always_eager = True
    runs: list[str] = []
    base = once_task(runtime, key="{x}", policy=Policy(recovery=recovery))

    @app.task(name="charge", base=base)  # type: ignore[untyped-decorator]
    def charge(x: str) -> str:
        runs.append(x)
        if len(runs) == 1:
            raise cause()
        return "charged"

    broken = charge.delay("a")
    assert type(broken.result) is not str
    for _ in range(2):
        again = charge.delay("a").result
        assert (again if isinstance(again, str) else type(again).__name__) == then
    assert len(runs) == (2 if recovery == "rerun" else 1)
    if recovery == "block":
        assert re.match("charge key=[0-9a-f]{12}: ", str(again)), "which task, and which key"
        [record] = runtime.gatherer.ask(Scan(10))
        assert record.state is State.UNKNOWN
    runtime.close()


@pytest.mark.parametrize("again", [Retry, partial(Reject, "later", requeue=True)])
def test_a_task_that_asks_for_another_try_gets_it_under_block_too(again: Any) -> None:
    runtime, app = Runtime("memory://"), Celery("t", set_as_current=False)
    runs: list[str] = []

    @app.task(name="charge", base=once_task(runtime, key="{x}", policy=Policy(recovery="block")))  # type: ignore[untyped-decorator]
    def charge(x: str) -> str:
        runs.append(x)
        if len(runs) == 1:
            raise again()
        return "charged"

    with pytest.raises((Retry, Reject)):
        charge("a")
    assert charge("a") == charge("a") == "charged"
    assert len(runs) == 2
    runtime.close()


@pytest.mark.parametrize("again", [Retry, partial(Reject, "later", requeue=True)])
def test_p6_a_task_that_asks_for_another_try_when_nobody_knows_what_it_did_gets_none(
    again: Any,
) -> None:
    runtime, app = Runtime("memory://"), Celery("t", set_as_current=False)
    runs: list[str] = []

    @app.task(name="charge", base=once_task(runtime, key="{x}"))  # type: ignore[untyped-decorator]
    def charge(x: str) -> str:
        runs.append(x)
        current().unknown()
        raise again()

    with pytest.raises((Retry, Reject)):
        charge("a")
    with pytest.raises(Unknown):
        charge("a")
    assert len(runs) == 1
    runtime.close()


@pytest.mark.parametrize("recovery", ["block", "ask"])
def test_what_celery_would_run_again_by_itself_is_refused_where_that_may_repeat_an_effect(
    recovery: Any,
) -> None:
    def task(x: str) -> str:
        return x

    app, ask = Celery("t", set_as_current=False), (str if recovery == "ask" else None)
    base = once_task(Runtime("memory://"), key="{x}", policy=Policy(recovery=recovery, ask=ask))
    with pytest.raises(Misuse, match=r"charge: .* name the exceptions .*no_effect_on=\(…,\)"):
        app.task(base=base, name="charge", autoretry_for=(OSError,), lazy=False)(task)
    again = once_task(Runtime("memory://"), key="{x}", policy=Policy(recovery="resume"))
    app.task(base=again, name="other", autoretry_for=(OSError,), lazy=False)(task)


def test_the_example_does_as_it_says(redis_url: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SHOP_BROKER": redis_url,
        "SHOP_STORE": f"sqlite:///{tmp_path / 'keys.db'}",
    }
    celery = [sys.executable, "-m", "celery", "-A", "celery_orders", "worker", "-c", "1"]
    with open(tmp_path / "log", "wb") as log:
        worker = subprocess.Popen(
            celery, cwd=ROOT / "examples", env=environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    command = [sys.executable, "celery_orders.py"]
    done = subprocess.run(
        command, cwd=ROOT / "examples", env=environment, capture_output=True, text=True, timeout=30
    )
    kill_all(worker)
    first, *more = done.stdout.splitlines()
    assert "parcel_" in first
    assert more == [first, first]
    assert (tmp_path / "log").read_text().count("shipping order-17") == 1
