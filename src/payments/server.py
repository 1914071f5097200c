"""Serve: the API on a socket, in one process or several, until it is told to end.

SIGTERM and Ctrl-C drain: no new requests are taken, those under way are answered, then it ends
with status 0.
"""

from __future__ import annotations

import ipaddress
import logging
import multiprocessing
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from payments.access.accounts import LOCAL_KEY
from payments.access.rate_limits import connection_pool
from payments.app import create_app
from payments.demo import webhook_listener
from payments.settings import Settings, make_folder
from payments.storage.database import Database

log = logging.getLogger("payments")

BACKLOG = 2_048
PORT_MAX = 65_535
DRAIN_S_MAX = 30
WORKER_START_S_MAX = 60
"""How long SIGHUP, which replaces the workers one by one, waits for each."""
FAILED_TO_START = 3
"""The exit status of a uvicorn worker whose application did not start."""


class CannotServeError(Exception):
    """Something that must be put right first; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Where and how the server listens."""

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    certificate: Path | None = None
    """With it, and its private key, HTTPS is spoken."""
    private_key: Path | None = None
    proxies: str = ""
    """Addresses, separated by commas, whose X-Forwarded-For is believed."""
    drain_s_max: int = DRAIN_S_MAX

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Application:
    """Makes the application; a value, so that it can be sent to worker processes."""

    settings: Settings

    def __call__(self) -> Any:
        parent = multiprocessing.parent_process()
        if parent is not None:  # a worker must not outlive whoever would replace it
            watch = threading.Thread(target=_end_with, args=(parent,), daemon=True)
            watch.start()
        return create_app(self.settings)


class Protocol(HttpToolsProtocol):
    """uvicorn's, but when the server ends, idle HTTPS connections are cut: to end them politely
    means to wait half a minute for a client that is not listening.
    """

    def shutdown(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        idle = cycle is None or cycle.response_complete
        if idle and self.scheme == "https":
            self.transport.abort()
        else:
            super().shutdown()


class Workers(Multiprocess):
    """uvicorn's, but workers are not asked for a sign of life: one that starts, or dies while it is
    asked, gives none, and would keep its parent from replacing the others and from hearing of its
    own end. Whoever has died is replaced.
    And when it ends, the parent lets go of the port at once: a new client is refused, and may go
    elsewhere, rather than wait for workers that take nobody any more.
    """

    def keep_subprocess_alive(self) -> None:
        for place, worker in enumerate(self.processes):
            if self.should_exit.is_set() or worker.process.is_alive():
                continue
            worker.kill()  # closes what leads to it
            if worker.exitcode == FAILED_TO_START:
                log.error("a worker could not start, and another one could not either: ending")
                self.should_exit.set()
                return
            self.processes[place] = Process(self.config, self.sockets)
            self.processes[place].start()

    def terminate_all(self) -> None:
        for held in self.sockets:
            held.close()
        super().terminate_all()


def serve(settings: Settings, listening: ListenOptions, ready: Callable[[], None]) -> int:
    """Serve until a signal ends it; `ready` is called once the port is ours. The exit status."""
    check(settings, listening)
    if settings.keeps_files:
        make_folder(settings.data)
    migrate(settings)
    config = configure(settings, listening)
    try:
        sockets = [config.bind_socket()]
    except SystemExit:  # its reason has been logged
        raise CannotServeError(
            f"Cannot listen on {listening.host} port {listening.port}: choose another one with "
            "--port, or end whoever has it."
        ) from None
    if settings.shows_demo and listening.certificate is None:
        webhook_listener.register(settings, listening.url)
    ready()
    # uvicorn ends what runs, then passes the signal on: an end that was asked for is no failure.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        if listening.workers == 1:
            server = uvicorn.Server(config)
            server.run(sockets=sockets)
            return 0 if server.started else 1
        workers = Workers(config, sockets=sockets)
        workers.run()
        return 1 if any(worker.exitcode == FAILED_TO_START for worker in workers.processes) else 0
    except KeyboardInterrupt:
        return 0


def configure(settings: Settings, listening: ListenOptions) -> uvicorn.Config:
    return uvicorn.Config(
        Application(settings),
        factory=True,
        http=Protocol,
        host=listening.host,
        port=listening.port,
        workers=listening.workers,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.private_key,
        # Whoever connects could write these headers: they count only from proxies that are named.
        proxy_headers=bool(listening.proxies),
        forwarded_allow_ips=listening.proxies or None,
        timeout_worker_healthcheck=WORKER_START_S_MAX,
        timeout_graceful_shutdown=listening.drain_s_max,
        backlog=BACKLOG,
        server_header=False,
        access_log=False,
        log_level="warning",
    )


def check(settings: Settings, listening: ListenOptions) -> None:
    """Find what cannot work before anything is started."""
    if (listening.certificate is None) != (listening.private_key is None):
        raise CannotServeError("HTTPS needs both --certificate FILE and --private-key FILE.")
    if listening.certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(listening.certificate, listening.private_key)
        except OSError as error:  # an ssl.SSLError is one
            raise CannotServeError(
                f"{listening.certificate} and {listening.private_key} are no certificate and its "
                f"private key in PEM form that can be read: {error}"
            ) from None
    if not 0 <= listening.port <= PORT_MAX:
        raise CannotServeError(f"--port takes a number from 0 up to {PORT_MAX}.")
    for option, number in (
        ("--workers", listening.workers),
        ("--body-bytes-max", settings.body_bytes_max),
        ("--drain-s-max", listening.drain_s_max),
    ):
        if number < 1:
            raise CannotServeError(f"{option} takes a number from 1 up.")
    if not _is_address(settings.network_url):
        raise CannotServeError("--network takes the card network's address: http://127.0.0.1:8001")
    if settings.redis_url is not None:
        connection_pool(settings.redis_url)  # workers would find out, each by itself and for ever
    elif listening.workers > 1:
        log.warning(
            "%d workers without --redis: each counts for itself, so that up to %d times the limits "
            "pass",
            listening.workers,
            listening.workers,
        )
    if listening.certificate is None and not _loops_back(listening.host):
        log.warning(
            "keys travel unencrypted to %s: use --certificate and --private-key, or let only a "
            "proxy that speaks HTTPS reach it",
            listening.host,
        )


def migrate(settings: Settings) -> None:
    """Create the tables that are missing, our own and oncekey's."""
    database = Database(settings)  # refuses what rows cannot be kept in, which records could be
    try:
        database.create_tables()
    finally:
        database.close()


def greeting(settings: Settings, listening: ListenOptions) -> str:
    """What to do with a server that was started."""
    if not settings.takes_local_key:
        return (
            f"The payments API is on {listening.url}/v1, its documentation on {listening.url}/docs"
            "\nMake a key:  ./dev payments account create NAME  (with the same --database)\n"
        )
    return (
        f"The payments API is on {listening.url}, its documentation on {listening.url}/docs\n"
        f"Its key, which works on this machine only, is {LOCAL_KEY}\n\n"
        "  Charge a card, then send it again: the answer is the same, and says it is a replay.\n"
        f"    curl -i {listening.url}/v1/charges -u {LOCAL_KEY}: \\\n"
        "       -H 'Idempotency-Key: first-try' \\\n"
        "       -d amount=2000 -d currency=eur -d source=tok_visa\n"
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


def _loops_back(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _end_with(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
