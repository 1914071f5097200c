"""./dev soak: does what is promised hold while everything fails? Exit code 1 if it does not."""

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
from soak.faults import Befell
from soak.judge import judge
from soak.ledger import now
from soak.operator import Operator
from soak.place import Place
from soak.report import Outcome
from soak.settings import Settings, read
from soak.workers import Worker
from tests.servers import Unavailable

WORKERS = 3
ORDERS_AT_ONCE = 32
PUBLISHED_S_MAX = 60.0


async def soak(settings: Settings, folder: Path) -> Outcome:
    """The whole of it. The folder keeps the ledger, and what the workers had to say."""
    began, befallen = now(), list[Befell]()
    book = folder / "ledger"
    async with contextlib.AsyncExitStack() as stack:
        place = await stack.enter_async_context(Place(settings, folder))
        workers = []
        for number in range(WORKERS):
            arguments = settings.as_text(), place.url, str(book)
            workers.append(Worker(arguments, folder / f"worker-{number}.log"))
            stack.callback(workers[-1].close)
        ports = [worker.port for worker in workers]
        operator = Operator(settings, place.direct, book)
        clients = Clients(settings.seed, ports, settings.routes, operator)
        planned = faults.plan(settings.seed, settings.seconds, settings.engine)
        until = now() + settings.seconds
        async with asyncio.TaskGroup() as group:
            progress = group.create_task(_progress(clients, befallen, workers))
            sweeping = group.create_task(operator.keep_sweeping())
            calling = group.create_task(clients.run(ORDERS_AT_ONCE, until))
            await faults.inflict_all(planned, place, workers, befallen)
            clients.healed_at = now()
            await calling
            await place.published(PUBLISHED_S_MAX)
            progress.cancel()
            sweeping.cancel()
        rows = await place.rows()
    entries = list(ledger.read(book))
    return Outcome(began, entries, clients.seen, befallen, judge(entries, clients.seen, rows))


async def _progress(clients: Clients, befallen: list[Befell], workers: list[Worker]) -> None:
    """Tell how far it is until cancelled; raise if a worker ends by itself."""
    began, shown = now(), sys.stderr.isatty()
    for tick in itertools.count():
        for worker in workers:
            worker.check()
        state = "" if clients.healed_at is None else "; nothing fails any more, the last are served"
        counts = f"{len(clients.seen):,} requests, {clients.orders:,} keys, {len(befallen)} faults"
        if shown or tick % 10 == 0:
            text = f"  {now() - began:3.0f} s: {counts}{state}"
            print(f"{text:<90}", end="\r" if shown else "\n", file=sys.stderr, flush=True)
        await asyncio.sleep(1)


def main() -> int:
    settings = read(None, __doc__)
    logging.getLogger("oncekey").addHandler(logging.NullHandler())  # of what the operator meets
    print(f"{settings.command}   (Ctrl-C ends it)", file=sys.stderr)
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
    print(f"Again, though no machine interleaves alike: {settings.command}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
