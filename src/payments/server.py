"""Serve the API on a socket, in one process or several.

SIGTERM and Ctrl-C drain: the server takes no new requests, finishes the running ones and exits with
status 0.
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
"""How long SIGHUP, which replaces the workers one by one, waits for each to start."""
FAILED_TO_START = 3
"""The exit status of a uvicorn worker whose application failed to start."""


class CannotServeError(Exception):
    """The server cannot start; the text says what to fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Where and how the server listens."""

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    certificate: Path | None = None
    """Together with its private key: serve HTTPS."""
    private_key: Path | None = None
    proxies: str = ""
    """Comma-separated addresses whose X-Forwarded-For is trusted."""
    drain_s_max: int = DRAIN_S_MAX

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AppFactory:
    """Creates the application; a value, so that it can be pickled for worker processes."""

    settings: Settings

    def __call__(self) -> Any:
        parent = multiprocessing.parent_process()
        if parent is not None:  # a worker must not outlive the process that replaces it
            watch = threading.Thread(target=_exit_with, args=(parent,), daemon=True)
            watch.start()
        return create_app(self.settings)


class DrainingProtocol(HttpToolsProtocol):
    """uvicorn's protocol, but aborts idle HTTPS connections at shutdown.

    Closing them properly would wait half a minute for a client that is not listening.
    """

    def shutdown(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        idle = cycle is None or cycle.response_complete
        if idle and self.scheme == "https":
            self.transport.abort()
        else:
            super().shutdown()


class Workers(Multiprocess):
    """uvicorn's supervisor, with two differences.

    It does not ping workers: one that starts, or dies during a ping, does not reply, and would keep
    the parent from replacing the others and from handling signals. Dead workers are replaced.

    At shutdown the parent closes the port at once: new clients are refused and may go elsewhere,
    instead of waiting for workers that accept no connections any more.
    """

    def keep_subprocess_alive(self) -> None:
        for place, worker in enumerate(self.processes):
            if self.should_exit.is_set() or worker.process.is_alive():
                continue
            worker.kill()  # closes its pipes
            if worker.exitcode == FAILED_TO_START:
                log.error("a worker could not start, and another could not either: exiting")
                self.should_exit.set()
                return
            self.processes[place] = Process(self.config, self.sockets)
            self.processes[place].start()

    def terminate_all(self) -> None:
        for listener in self.sockets:
            listener.close()
        super().terminate_all()


def serve(settings: Settings, listening: ListenOptions, ready: Callable[[], None]) -> int:
    """Serve until a signal and return the exit status. Calls `ready` once the port is bound."""
    check(settings, listening)
    if settings.keeps_files:
        make_folder(settings.data)
    migrate(settings)
    config = configure(settings, listening)
    try:
        sockets = [config.bind_socket()]
    except SystemExit:  # uvicorn has logged the reason
        raise CannotServeError(
            f"Cannot listen on {listening.host} port {listening.port}: choose another one with "
            "--port, or stop the process that uses it."
        ) from None
    if settings.shows_demo and listening.certificate is None:
        webhook_listener.register(settings, listening.url)
    ready()
    # uvicorn drains, then raises the signal again: a requested shutdown is no failure.
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
        AppFactory(settings),
        factory=True,
        http=DrainingProtocol,
        host=listening.host,
        port=listening.port,
        workers=listening.workers,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.private_key,
        # Any client could send these headers: trust them only from the named proxies.
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
    """Raise for settings that cannot work, before anything starts."""
    if (listening.certificate is None) != (listening.private_key is None):
        raise CannotServeError("HTTPS needs both --certificate FILE and --private-key FILE.")
    if listening.certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(listening.certificate, listening.private_key)
        except OSError as error:  # an ssl.SSLError is one
            raise CannotServeError(
                f"cannot read {listening.certificate} and {listening.private_key} as a "
                f"certificate and its private key in PEM format: {error}"
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
        connection_pool(settings.redis_url)  # else every worker would fail by itself, for ever
    elif listening.workers > 1:
        log.warning(
            "%d workers without --redis: each counts by itself, so up to %d times the limits pass",
            listening.workers,
            listening.workers,
        )
    if listening.certificate is None and not _is_loopback(listening.host):
        log.warning(
            "keys travel unencrypted to %s: use --certificate and --private-key, or put an HTTPS "
            "proxy in front",
            listening.host,
        )


def migrate(settings: Settings) -> None:
    """Create missing tables, ours and oncekey's."""
    database = Database(settings)  # rejects databases that only oncekey supports
    try:
        database.create_tables()
    finally:
        database.close()


def welcome_text(settings: Settings, listening: ListenOptions) -> str:
    """Say how to use a server that has started."""
    if not settings.takes_local_key:
        return (
            f"The payments API is on {listening.url}/v1, its documentation on {listening.url}/docs"
            "\nMake a key:  ./dev payments account create NAME  (with the same --database)\n"
        )
    return (
        f"The payments API is on {listening.url}, its documentation on {listening.url}/docs\n"
        f"Its key, which works on this machine only, is {LOCAL_KEY}\n\n"
        "  Charge a card, then send it again: the response is the same, marked as a replay.\n"
        f"    curl -i {listening.url}/v1/charges -u {LOCAL_KEY}: \\\n"
        "       -H 'Idempotency-Key: first-try' \\\n"
        "       -d amount=2000 -d currency=eur -d source=tok_visa\n"
    )


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _exit_with(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
