"""`recover`: finish requests whose process died."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
import traceback
from typing import Any

from oncekey._core.printable import printable
from oncekey._engine.recovery import Recovered, Recoverer
from oncekey._engine.registry import registries
from oncekey.cli.output import duration, print_json
from oncekey.cli.records import shown_key
from oncekey.errors import Misuse
from oncekey.web._lifespan import start_application

INTERRUPTED_WORK = 3
"""The exit code if recovered operations were still running at the end."""


def recover(args: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    app = load(args.app)
    late = asyncio.run(_recover(app, args))
    if late:  # threads that cannot be stopped would keep this process alive
        sys.stdout.flush()
        os._exit(INTERRUPTED_WORK)
    return 0


def load(name: str) -> Any:
    """Import what `package.module:attribute` names, from the current folder too."""
    module, _, attribute = name.partition(":")
    if not module or module.startswith(".") or not attribute:
        raise Misuse(f"{name!r}: write package.module:app, as you would for a server")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _import_failed(module, error) from error
        raise Misuse(f"there is no module {error.name} here: run it where there is") from None
    except Exception as error:
        raise _import_failed(module, error) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Misuse(f"the module {module} has no {attribute}")
        found = getattr(found, part)
    return found


def _import_failed(module: str, error: Exception) -> Misuse:
    """Print the traceback: it is a mistake of the application."""
    traceback.print_exception(error)
    return Misuse(f"{module} could not be imported: {type(error).__name__}: {error}")


async def _recover(app: Any, args: argparse.Namespace) -> int:
    """Recover; return how many operations were still running at the end."""
    async with start_application(app):
        recoverers = _recoverers(args)
        if args.once:
            for recoverer in recoverers:
                while await recoverer.round():
                    await recoverer.settle()
                await recoverer.settle()
            return 0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, _stop, recoverers)
        if not args.json:
            print(f"recovering every {args.every_s:g} s; Ctrl-C ends it", file=sys.stderr)
        return sum(await asyncio.gather(*(recoverer.run() for recoverer in recoverers)))


def _recoverers(args: argparse.Namespace) -> list[Recoverer]:
    found = registries()
    if not found:
        raise Misuse(
            f"{args.app} has no IdempotencyMiddleware and no @once function on a store that "
            "processes share, so there is nothing to recover"
        )
    return [
        Recoverer(
            registry.store,
            every_s=args.every_s,
            concurrency=args.concurrency,
            patience_s=args.patience_s,
            report=_print_json if args.json else _print_text,
        )
        for registry in found
    ]


def _stop(recoverers: list[Recoverer]) -> None:
    for recoverer in recoverers:
        recoverer.stop()


def _print_text(recovered: Recovered) -> None:
    record = recovered.record
    print(
        f"{recovered.ending}: {printable(record.operation)} id={record.id.hex()[:16]} "
        f"key={shown_key(record, show_key=False)}: {recovered.reason} "
        f"({duration(recovered.late_s)} after its lease)",
        flush=True,
    )


def _print_json(recovered: Recovered) -> None:
    record = recovered.record
    print_json(
        {
            "ending": str(recovered.ending),
            "reason": recovered.reason,
            "id": record.id.hex(),
            "operation": record.operation,
            "key_hash": shown_key(record, show_key=False),
            "attempt": record.attempt,
            "lapses": record.lapses,
            "late_s": round(recovered.late_s, 3),
        }
    )
