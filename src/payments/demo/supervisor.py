"""`./dev run`: the whole system on this machine.

Two processes: the API, which has the webhook worker and the recoverer within it, and the card
network, which is a world of its own. Whichever ends is started again. SIGTERM and Ctrl-C end them
in order: first the crowd, then the API, which drains, then the network that it may still need.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from payments import clock
from payments.access.accounts import LOCAL_KEY
from payments.demo.child_process import ChildProcess
from payments.demo.load.crowd import Crowd, Shop, generated_key
from payments.settings import Settings, make_folder
from payments.storage import ids
from payments.storage.database import Database

START_S_MAX = 60.0
TICK_S = 0.05
PAUSE_S_MAX = 2.0
STEADY_S = 5.0
"""Whoever ran so long is well: should it end, it is started again at once."""
DRAIN_S_MAX = 40.0
NETWORK_STOP_S_MAX = 15.0


_REDRAW = "\r\x1b[K"


class CannotRunError(Exception):
    """Something that must be put right first; the text says what."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to run, and where."""

    data: Path
    port: int
    network_port: int
    database: str
    redis: str
    workers: int
    api_key: str
    """Empty where there is none that works without being made."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def network_url(self) -> str:
        return f"http://127.0.0.1:{self.network_port}"

    @property
    def network_file(self) -> Path:
        return self.data / "network.db"

    def network_command(self) -> list[str]:
        words = [sys.executable, "-m", "payments.network.server"]
        return [*words, "--file", str(self.network_file), "--port", str(self.network_port)]

    def api_command(self) -> list[str]:
        words = [sys.executable, "-m", "payments", "serve", "--port", str(self.port)]
        words += ["--data", str(self.data), "--network", self.network_url]
        words += ["--workers", str(self.workers)]
        # All of it is on this machine, so a receiver of webhooks may be too.
        return [*words, "--webhook-network", "127.0.0.0/8", "--webhook-network", "::1/128"]

    def environment(self) -> dict[str, str]:
        """Where passwords may be: not in the list of processes."""
        where = {"PAYMENTS_DATABASE": self.database, "PAYMENTS_REDIS": self.redis}
        return {**os.environ, **where}


class SupervisedProcess:
    """Keeps one program running, and remembers how often it had to."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        *,
        death_signal: signal.Signals,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._environment = environment
        self._death_signal = death_signal
        self._pause_s = 0.0
        self._again_at: float | None = None
        self.start()

    def start(self) -> None:
        self._again_at = None
        self._started = clock.monotonic()
        with open(self.log, "ab") as log:
            self.child = ChildProcess(
                self.name,
                self._command,
                output=log,
                environment=self._environment,
                death_signal=self._death_signal,
            )

    def look(self) -> str | None:
        """Start it again if it ended; what happened, if anything did."""
        now = clock.monotonic()
        if self._again_at is not None:
            if now >= self._again_at:
                self.start()
            return None
        status = self.child.exit_status
        if status is None:
            return None
        # At once the first time. What ends again and again must not take the machine with it.
        steady = now - self._started >= STEADY_S
        self._again_at = now + (0.0 if steady else self._pause_s)
        self._pause_s = 0.1 if steady else min(PAUSE_S_MAX, max(0.1, 2 * self._pause_s))
        return f"{self.name} ended with status {status}: starting it again"

    def said(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:].strip()


# --------------------------------------------------------------------------------------- starting


def main(argv: list[str] | None = None) -> int:
    """Run until a signal ends it: 0. 1 if it could not be started; the reason is printed."""
    logging.getLogger("oncekey.client").setLevel(logging.ERROR)  # faults are what we are here for
    said = _parser().parse_args(argv)
    try:
        with _folder(said.data) as data:
            plan = Plan(
                data,
                said.port,
                said.network_port or _free_port_after(said.port),
                said.database,
                said.redis,
                said.workers,
                said.key or ("" if said.database else LOCAL_KEY),
            )
            if said.traffic and not plan.api_key:
                raise CannotRunError(
                    f"{LOCAL_KEY} does not work on a database of your own. Make a key with "
                    "`./dev payments account create crowd`, and give it by --key."
                )
            _check_free(plan.port, "--port")
            if plan.network_port == plan.port:  # each would get some of the other's requests
                raise CannotRunError(
                    f"Port {plan.port} is the API's: choose another by --network-port."
                )
            return _run(plan, kept=said.data is not None, traffic=said.traffic)
    except CannotRunError as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev run", description="The payments system: API, card network, webhooks, recovery."
    )
    parser.add_argument("--port", type=int, default=8000, help="[%(default)s]")
    parser.add_argument("--network-port", type=int, help="[the next one that is free]")
    parser.add_argument("--data", type=Path, help="keep its files there [a folder that is removed]")
    parser.add_argument(
        "--database",
        default=os.environ.get("PAYMENTS_DATABASE", ""),
        help="postgresql://… [$PAYMENTS_DATABASE, or SQLite]",
    )
    parser.add_argument(
        "--redis",
        default=os.environ.get("PAYMENTS_REDIS", ""),
        help="redis://…, for limits that workers share [$PAYMENTS_REDIS]",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes of the API [%(default)s]")
    parser.add_argument(
        "--traffic", action="store_true", help="let a crowd loose on it, and count what happens"
    )
    parser.add_argument("--key", default="", help="that the crowd pays with [one of its own]")
    return parser


@contextlib.contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is not None:
        try:
            make_folder(data)
        except ValueError as error:
            raise CannotRunError(error) from None
        yield data.absolute()
        return
    made = Path(tempfile.mkdtemp(prefix="payments-"))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _is_free(port: int) -> bool:
    return _why_not(port) is None


def _why_not(port: int) -> str | None:
    """Why one cannot listen there, and what to choose; None if one can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "is taken: end whoever has it, or choose another"
            return f"is refused ({error.strerror}): choose another"
        except OverflowError:
            return "does not exist: choose one up to 65535"
    return None


def _check_free(port: int, option: str) -> None:
    if why := _why_not(port):
        raise CannotRunError(f"Port {port} {why} by {option}.")


def _free_port_after(port: int) -> int:
    return next((p for p in range(port + 1, min(port + 100, 65_536)) if _is_free(p)), port + 1)


def _await(process: SupervisedProcess, url: str, signals: Signals) -> None:
    """Until it answers."""
    deadline = clock.monotonic() + START_S_MAX
    while not _answers(url):
        if signals.came:
            return
        if process.child.exit_status is not None:
            raise CannotRunError(f"{process.name} did not start:\n{process.said()}")
        if clock.monotonic() >= deadline:
            raise CannotRunError(
                f"{process.name} gave no answer in {START_S_MAX:g} s:\n{process.said()}"
            )
        time.sleep(TICK_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310  (our own address)
            return True
    except urllib.error.HTTPError:
        return True  # whatever it is, somebody is there
    except OSError:
        return False


# ---------------------------------------------------------------------------------------- running


class Signals:
    """Whether somebody asked for the end. Asked twice, it comes at once."""

    def __init__(self) -> None:
        self.came = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on)

    def _on(self, number: int, frame: object) -> None:
        self.came += 1
        if self.came > 1:
            raise SystemExit(128 + number)


class ProgressLine:
    """Writes to a terminal; or to a file or pipe, where a line every few seconds is enough."""

    def __init__(self, stream: TextIO, *, every_s: float = 5.0) -> None:
        self._stream = stream
        self._lively = stream.isatty()
        self._every_s = every_s
        self._next = float("-inf")
        self._drawn = False

    def show(self, text: str, now: float) -> None:
        """How it stands now."""
        if self._lively:
            room = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be redrawn
            self._write(f"{_REDRAW}{text[:room]}")
            self._drawn = True
        elif now >= self._next:
            self._next = now + self._every_s
            self._write(f"{text}\n")

    def say(self, text: str) -> None:
        """Something that is to stay."""
        self._write(f"{_REDRAW if self._drawn else ''}{text}\n")
        self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _run(plan: Plan, *, kept: bool, traffic: bool) -> int:
    signals = Signals()
    with contextlib.ExitStack() as children:
        network = SupervisedProcess(
            "the card network",
            plan.network_command(),
            plan.data / "network.log",
            death_signal=signal.SIGKILL,
        )
        children.callback(_stop, network, NETWORK_STOP_S_MAX)
        api = SupervisedProcess(
            "the API",
            plan.api_command(),
            plan.data / "api.log",
            death_signal=signal.SIGTERM,
            environment=plan.environment(),
        )
        children.callback(_stop, api, DRAIN_S_MAX)
        _await(network, f"{plan.network_url}/tally", signals)
        _await(api, f"{plan.url}/v1/balance", signals)
        ticker = ProgressLine(sys.stdout)
        if not signals.came:
            ticker.say(greeting(plan, kept))
        if traffic:
            _with_crowd(plan, [network, api], signals, ticker)
        else:
            _watch([network, api], signals, ticker)
        ticker.say("Ending: requests that are under way are answered first.")
    return 0


def _stop(process: SupervisedProcess, within_s: float) -> None:
    """However we leave, no child stays behind."""
    try:
        process.child.stop(within_s)
    except BaseException:
        process.child.kill()
        raise


def _watch(processes: list[SupervisedProcess], signals: Signals, ticker: ProgressLine) -> None:
    while not signals.came:
        _restart_ended(processes, ticker)
        time.sleep(TICK_S)


def _restart_ended(processes: list[SupervisedProcess], ticker: ProgressLine) -> None:
    for process in processes:
        happened = process.look()
        if happened:
            ticker.say(f"  {happened}")


def _with_crowd(
    plan: Plan, processes: list[SupervisedProcess], signals: Signals, ticker: ProgressLine
) -> None:
    settings = Settings(data=plan.data, database_url=plan.database)
    with contextlib.closing(Database(settings)) as database:
        key = generated_key(database) if plan.api_key == LOCAL_KEY else plan.api_key
        crowd = Crowd(Shop(plan.url, key, plan.network_url), plan.data, database)
        try:
            while not signals.came:
                _restart_ended(processes, ticker)
                crowd.tick()
                ticker.show(crowd.line, clock.monotonic())
                time.sleep(TICK_S)
            ticker.say("The crowd finishes what it has begun.")
            crowd.leave()
            while crowd.is_leaving:
                _restart_ended(processes, ticker)
                time.sleep(TICK_S)
        finally:
            crowd.close()
        ticker.say(crowd.line)


def greeting(plan: Plan, kept: bool) -> str:
    """Where it is, and what to try."""
    files = "" if kept else " (removed at the end; --data DIR keeps them)"
    key = plan.api_key or "$KEY"
    page = "how it works    {}/explain" if plan.database else "checkout page   {}/"
    lines = [
        f"payments is on {plan.url}, Ctrl-C ends it.",
        "",
        f"  {page.format(plan.url)}",
        f"  documentation   {plan.url}/docs",
        f"  key of the API  {plan.api_key or 'make one: ./dev payments account create NAME'}",
        f"  card network    {plan.network_url}/transactions",
        f"  files           {plan.data}{files}",
        "",
        "  Charge a card, and send the very same again: the second answer says it is a replay.",
        f"    curl -i {plan.url}/v1/charges -u {key}: \\",
        f"      -H 'Idempotency-Key: {ids.random_letters(12)}' \\",
        "      -d amount=500 -d currency=usd -d source=tok_visa",
        "  The network charged the card once:",
        f"    curl {plan.network_url}/tally",
        "",
    ]
    return "\n".join(lines)
