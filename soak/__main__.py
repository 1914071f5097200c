"""./dev soak: check that the promises hold while everything fails. Exit code 1 if they do not."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import shutil
import sys
import tempfile
from pathlib import Path

from soak import delivery, faults, ledger, report
from soak.clients import Clients
from soak.environment import Environment
from soak.faults import InflictedFault
from soak.judge import judge
from soak.ledger import now
from soak.operator import Operator
from soak.report import SoakResult
from soak.settings import Settings, read
from soak.workers import Worker
from tests.servers import Unavailable

WORKERS = 3
ORDERS_AT_ONCE = 32
PUBLISHED_S_MAX = 60.0


async def soak(settings: Settings, folder: Path) -> SoakResult:
    """Run a whole soak. The folder holds the ledger and the workers' logs."""
    began, inflicted = now(), list[InflictedFault]()
    book = folder / "ledger"
    async with contextlib.AsyncExitStack() as stack:
        environment = await stack.enter_async_context(Environment(settings, folder))
        workers = []
        for number in range(WORKERS):
            arguments = settings.as_text(), environment.url, str(book)
            workers.append(Worker(arguments, folder / f"worker-{number}.log"))
            stack.callback(workers[-1].close)
        ports = [worker.port for worker in workers]
        operator = Operator(settings, environment.direct_url, book)
        clients = Clients(settings.seed, ports, settings.routes, operator)
        planned = faults.plan(settings.seed, settings.seconds, settings.engine)
        until = now() + settings.seconds
        async with asyncio.TaskGroup() as group:
            progress = group.create_task(_progress(clients, inflicted, workers))
            sweeping = group.create_task(operator.keep_sweeping())
            calling = group.create_task(clients.run(ORDERS_AT_ONCE, until))
            await faults.inflict_all(planned, environment, workers, inflicted)
            clients.healed_at = now()
            await calling
            await environment.wait_until_published(PUBLISHED_S_MAX)
            progress.cancel()
            sweeping.cancel()
        rows = await environment.rows()
    entries = list(ledger.read(book))
    return SoakResult(began, entries, clients.seen, inflicted, judge(entries, clients.seen, rows))


async def _progress(
    clients: Clients, inflicted: list[InflictedFault], workers: list[Worker]
) -> None:
    """Show progress until cancelled; raise if a worker ends by itself."""
    began, is_terminal = now(), sys.stderr.isatty()
    for tick in itertools.count():
        for worker in workers:
            worker.check()
        state = "" if clients.healed_at is None else "; no more faults, finishing"
        counts = f"{len(clients.seen):,} requests, {clients.orders:,} keys, {len(inflicted)} faults"
        if is_terminal or tick % 10 == 0:
            text = f"  {now() - began:3.0f} s: {counts}{state}"
            print(f"{text:<90}", end="\r" if is_terminal else "\n", file=sys.stderr, flush=True)
        await asyncio.sleep(1)


def main() -> int:
    settings = read(None, __doc__)
    logging.getLogger("oncekey").addHandler(logging.NullHandler())  # of the operator's errors
    print(f"{settings.command}   (Ctrl-C stops it)", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="oncekey-soak-"))
    try:
        outcome = asyncio.run((delivery.soak if settings.broker else soak)(settings, folder))
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        return 130
    except Unavailable as unavailable:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"\n{unavailable}", file=sys.stderr)
        return 1
    print(f"\n{(delivery if settings.broker else report).summary(outcome)}")
    if not outcome.violations:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    print(f"\n{report.complaints(outcome)}\n\nLedger and logs: {folder}")
    print(f"Repeat it (the interleaving will differ): {settings.command}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
