"""`./dev run`: the whole system on this machine.

Two processes: the API, with the webhook worker and the recoverer inside, and the card network. Each
is restarted if it ends. SIGTERM and Ctrl-C stop them in order: first the crowd, then the API, which
drains, then the network, which the API may still need.
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
from payments.demo.load.crowd import Crowd, Shop, rotate_crowd_key
from payments.settings import Settings, make_folder
from payments.storage import ids
from payments.storage.database import Database

START_S_MAX = 60.0
TICK_S = 0.05
PAUSE_S_MAX = 2.0
STEADY_S = 5.0
"""A process that ran this long is restarted at once if it ends."""
DRAIN_S_MAX = 40.0
NETWORK_STOP_S_MAX = 15.0


_REDRAW = "\r\x1b[K"


class CannotRunError(Exception):
    """The system cannot start; the text says what to fix."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and where."""

    data: Path
    port: int
    network_port: int
    database: str
    redis: str
    workers: int
    api_key: str
    """Empty if none works without being created."""

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
        # Everything is on this machine, so webhook receivers may be too.
        return [*words, "--webhook-network", "127.0.0.0/8", "--webhook-network", "::1/128"]

    def environment(self) -> dict[str, str]:
        """Pass URLs with passwords here, not in the list of processes."""
        where = {"PAYMENTS_DATABASE": self.database, "PAYMENTS_REDIS": self.redis}
        return {**os.environ, **where}


class SupervisedProcess:
    """Keeps one program running: restarts it when it ends."""

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

    def restart_if_ended(self) -> str | None:
        """Restart the process if it ended; return what happened, if anything."""
        now = clock.monotonic()
        if self._again_at is not None:
            if now >= self._again_at:
                self.start()
            return None
        status = self.child.exit_status
        if status is None:
            return None
        # At once the first time; with growing pauses if it keeps failing.
        steady = now - self._started >= STEADY_S
        self._again_at = now + (0.0 if steady else self._pause_s)
        self._pause_s = 0.1 if steady else min(PAUSE_S_MAX, max(0.1, 2 * self._pause_s))
        return f"{self.name} ended with status {status}: restarting it"

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-2000:].strip()


# --------------------------------------------------------------------------------------- starting


def main(argv: list[str] | None = None) -> int:
    """Run until a signal: 0. Return 1 if it cannot start; the reason is printed."""
    logging.getLogger("oncekey.client").setLevel(logging.ERROR)  # faults are expected here
    args = _parser().parse_args(argv)
    try:
        with _folder(args.data) as data:
            plan = Plan(
                data,
                args.port,
                args.network_port or _free_port_after(args.port),
                args.database,
                args.redis,
                args.workers,
                args.key or ("" if args.database else LOCAL_KEY),
            )
            if args.traffic and not plan.api_key:
                raise CannotRunError(
                    f"{LOCAL_KEY} does not work on a database of your own. Make a key with "
                    "`./dev payments account create crowd` and pass it with --key."
                )
            _check_free(plan.port, "--port")
            if plan.network_port == plan.port:  # they would get each other's requests
                raise CannotRunError(
                    f"Port {plan.port} is the API's: choose another by --network-port."
                )
            return _run(plan, kept=args.data is not None, traffic=args.traffic)
    except CannotRunError as error:
        print(error, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev run", description="The payments system: API, card network, webhooks, recovery."
    )
    parser.add_argument("--port", type=int, default=8000, help="[%(default)s]")
    parser.add_argument("--network-port", type=int, help="[the next one that is free]")
    parser.add_argument("--data", type=Path, help="store files there [a temporary folder]")
    parser.add_argument(
        "--database",
        default=os.environ.get("PAYMENTS_DATABASE", ""),
        help="postgresql://… [$PAYMENTS_DATABASE, or SQLite]",
    )
    parser.add_argument(
        "--redis",
        default=os.environ.get("PAYMENTS_REDIS", ""),
        help="redis://…, for rate limits that workers share [$PAYMENTS_REDIS]",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes of the API [%(default)s]")
    parser.add_argument(
        "--traffic",
        action="store_true",
        help="run a crowd of shoppers against it and count what happens",
    )
    parser.add_argument("--key", default="", help="API key the crowd pays with [its own account's]")
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
    return _port_problem(port) is None


def _port_problem(port: int) -> str | None:
    """Return why the port cannot be used and what to do, or None."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "is in use: stop the process that uses it, or choose another"
            return f"is refused ({error.strerror}): choose another"
        except OverflowError:
            return "does not exist: choose one up to 65535"
    return None


def _check_free(port: int, option: str) -> None:
    if why := _port_problem(port):
        raise CannotRunError(f"Port {port} {why} with {option}.")


def _free_port_after(port: int) -> int:
    return next((p for p in range(port + 1, min(port + 100, 65_536)) if _is_free(p)), port + 1)


def _wait_until_ready(process: SupervisedProcess, url: str, signals: StopSignals) -> None:
    """Wait until a process answers at `url`."""
    deadline = clock.monotonic() + START_S_MAX
    while not _answers(url):
        if signals.count:
            return
        if process.child.exit_status is not None:
            raise CannotRunError(f"{process.name} did not start:\n{process.log_tail()}")
        if clock.monotonic() >= deadline:
            raise CannotRunError(
                f"{process.name} gave no answer in {START_S_MAX:g} s:\n{process.log_tail()}"
            )
        time.sleep(TICK_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):  # noqa: S310  (our own address)
            return True
    except urllib.error.HTTPError:
        return True  # any response will do
    except OSError:
        return False


# ---------------------------------------------------------------------------------------- running


class StopSignals:
    """Counts signals to stop. The second one exits at once."""

    def __init__(self) -> None:
        self.count = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on)

    def _on(self, number: int, frame: object) -> None:
        self.count += 1
        if self.count > 1:
            raise SystemExit(128 + number)


class ProgressLine:
    """One line that is redrawn, with messages above; in a file or pipe, a line now and then."""

    def __init__(self, stream: TextIO, *, every_s: float = 5.0) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._every_s = every_s
        self._next = float("-inf")
        self._drawn = False

    def show(self, text: str, now: float) -> None:
        """Show the current status."""
        if self._is_terminal:
            room = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be redrawn
            self._write(f"{_REDRAW}{text[:room]}")
            self._drawn = True
        elif now >= self._next:
            self._next = now + self._every_s
            self._write(f"{text}\n")

    def say(self, text: str) -> None:
        """Print a message that stays."""
        self._write(f"{_REDRAW if self._drawn else ''}{text}\n")
        self._drawn = False

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _run(plan: Plan, *, kept: bool, traffic: bool) -> int:
    signals = StopSignals()
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
        _wait_until_ready(network, f"{plan.network_url}/tally", signals)
        _wait_until_ready(api, f"{plan.url}/v1/balance", signals)
        progress = ProgressLine(sys.stdout)
        if not signals.count:
            progress.say(welcome_text(plan, kept))
        if traffic:
            _with_crowd(plan, [network, api], signals, progress)
        else:
            _watch([network, api], signals, progress)
        progress.say("Stopping: running requests are finished first.")
    return 0


def _stop(process: SupervisedProcess, within_s: float) -> None:
    """Stop a process, whatever happens: no child stays behind."""
    try:
        process.child.stop(within_s)
    except BaseException:
        process.child.kill()
        raise


def _watch(
    processes: list[SupervisedProcess], signals: StopSignals, progress: ProgressLine
) -> None:
    while not signals.count:
        _restart_ended(processes, progress)
        time.sleep(TICK_S)


def _restart_ended(processes: list[SupervisedProcess], progress: ProgressLine) -> None:
    for process in processes:
        happened = process.restart_if_ended()
        if happened:
            progress.say(f"  {happened}")


def _with_crowd(
    plan: Plan, processes: list[SupervisedProcess], signals: StopSignals, progress: ProgressLine
) -> None:
    settings = Settings(data=plan.data, database_url=plan.database)
    with contextlib.closing(Database(settings)) as database:
        key = rotate_crowd_key(database) if plan.api_key == LOCAL_KEY else plan.api_key
        crowd = Crowd(Shop(plan.url, key, plan.network_url), plan.data, database)
        try:
            while not signals.count:
                _restart_ended(processes, progress)
                crowd.tick()
                progress.show(crowd.line, clock.monotonic())
                time.sleep(TICK_S)
            progress.say("The crowd finishes what it has begun.")
            crowd.leave()
            while crowd.is_leaving:
                _restart_ended(processes, progress)
                time.sleep(TICK_S)
        finally:
            crowd.close()
        progress.say(crowd.line)


def welcome_text(plan: Plan, kept: bool) -> str:
    """Say where everything is and what to try."""
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
        "  Charge a card, then send it again: the second response is marked as a replay.",
        f"    curl -i {plan.url}/v1/charges -u {key}: \\",
        f"      -H 'Idempotency-Key: {ids.random_letters(12)}' \\",
        "      -d amount=500 -d currency=usd -d source=tok_visa",
        "  The network charged the card once:",
        f"    curl {plan.network_url}/tally",
        "",
    ]
    return "\n".join(lines)
