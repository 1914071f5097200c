"""Serve: the API as real processes, from the first byte to an orderly end."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from payments.access.accounts import LOCAL_KEY, Accounts
from payments.server import ListenOptions, configure
from payments.settings import Settings
from payments.storage.database import Database
from tests.payments.card_network import CardNetwork
from tests.payments.serve_command import WAIT_S_MAX, ServeCommand, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

Serve = Callable[..., ServeCommand]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[CardNetwork]:
    with CardNetwork(tmp_path) as network:
        yield network


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[ServeCommand] = []

    def serve(*words: str, **how: Any) -> ServeCommand:
        started.append(ServeCommand(tmp_path / f"data{len(started)}", *words, **how))
        return started[-1]

    yield serve
    for serving in started:
        serving.close()


def has_pending(data: Path) -> bool:
    with closing(sqlite3.connect(data / "payments.db")) as file:
        found = file.execute("SELECT count(*) FROM charges WHERE status = 'pending'").fetchone()
    return bool(found[0])


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigterm_lets_a_slow_charge_end_and_its_client_have_the_answer(
    serve: Serve, network: CardNetwork, workers: str
) -> None:
    """The network is frozen, so the charge cannot end before the server was told to."""
    serving = serve("--network", network.url, "--workers", workers)
    answers: list[httpx2.Response] = []
    os.kill(network.child.pid, signal.SIGSTOP)
    client = threading.Thread(target=lambda: answers.append(serving.charge("k1")))
    client.start()
    until(lambda: has_pending(serving.data), "the charge to begin")
    serving.process.send_signal(signal.SIGTERM)
    until(lambda: not takes_connections(serving.port), "the server to take no more")
    assert serving.process.poll() is None
    os.kill(network.child.pid, signal.SIGCONT)
    client.join(WAIT_S_MAX)
    assert serving.process.wait(WAIT_S_MAX) == 0
    assert answers[0].status_code == 200
    assert answers[0].json()["status"] == "succeeded"
    assert len(network.rows()) == 1
    assert "Traceback" not in serving.output_text()


def takes_connections(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S_MAX):
            return True
    except ConnectionRefusedError:
        return False


def test_what_it_says_at_the_start_is_so(serve: Serve, network: CardNetwork) -> None:
    serving = serve("--network", network.url)
    assert f"{serving.url}/docs" in serving.output_text()
    assert LOCAL_KEY in serving.output_text()
    first, again = serving.charge("k1"), serving.charge("k1")
    assert (first.status_code, again.content) == (200, first.content)
    assert again.headers["Idempotent-Replayed"] == "true"
    same_port = ["serve", "--port", str(serving.port), "--data", str(serving.data)]
    second = subprocess.run(
        [sys.executable, "-m", "payments", *same_port], capture_output=True, text=True, timeout=50
    )
    assert second.returncode == 1
    assert "choose another one with --port" in second.stderr
    assert "Traceback" not in second.stderr
    assert serving.end() == 0


def test_https_by_certificate(serve: Serve, network: CardNetwork, tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    trust = ssl.create_default_context(cafile=certificate)
    words = ["--certificate", str(certificate), "--private-key", str(key)]
    serving = serve("--network", network.url, *words, scheme="https", trust=trust)
    assert serving.charge("k1").status_code == 200
    before = time.monotonic()
    assert serving.end() == 0
    assert time.monotonic() - before < 25  # its client is idle and keeps its connection


def self_signed(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "payments")])
    now = datetime.now(UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / "certificate.pem", folder / "private.pem"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return pem, private


def test_workers_on_postgresql_and_redis_share_accounts_keys_and_limits(
    serve: Serve, network: CardNetwork, postgres_url: str, redis_url: str
) -> None:
    """Two servers, one of them with two workers; whichever answers, they are one API."""
    with redis.Redis.from_url(redis_url) as client:
        client.flushdb()
    postgres_url += "?allow=unsafe-durability"  # the tests' server forgets on a power cut
    words = ["--database", postgres_url, "--redis", redis_url]
    words += ["--network", network.url, "--limit", "POST charges=3/hour"]
    one, other = serve(*words), serve(*words, "--workers", "2")
    with closing(Database(Settings(database_url=postgres_url))) as database:
        accounts = Accounts(database)
        account, key = accounts.create("Tea shop")
        first = one.charge("k1", key)
        assert first.status_code == 200
        again = other.charge("k1", accounts.rotate(account))
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
    assert one.charge("k9").status_code == 401  # the local key is for the embedded database
    servers = (one, other, one, other)
    rest = [server.charge(f"n{n}", key).status_code for n, server in enumerate(servers)]
    assert rest == [200, 200, 429, 429]
    assert other.charge("k1", key).headers["Idempotent-Replayed"] == "true"
    assert len(network.rows()) == 3
    assert (one.end(), other.end()) == (0, 0)


def test_a_worker_that_dies_is_replaced_and_all_end_with_their_parent(serve: Serve) -> None:
    serving = serve("--workers", "2")
    before = workers_of(serving.process.pid)
    os.kill(before[0], signal.SIGKILL)
    until(lambda: set(workers_of(serving.process.pid)) - set(before) != set(), "another worker")
    serving.process.kill()
    until(lambda: not takes_connections(serving.port), "the workers to end")


def test_a_worker_that_is_silent_keeps_no_other_from_being_replaced(serve: Serve) -> None:
    """As one that starts is, or one that dies while it is asked for a sign of life."""
    serving = serve("--workers", "2")
    silent, other = workers_of(serving.process.pid)
    os.kill(silent, signal.SIGSTOP)
    try:
        os.kill(other, signal.SIGKILL)
        until(
            lambda: set(workers_of(serving.process.pid)) - {silent, other} != set(),
            "another worker",
        )
    finally:
        os.kill(silent, signal.SIGCONT)
    assert serving.end() == 0


def workers_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if parent == pid and "spawn_main" in command:
            found.append(int(stat.parent.name))
    return found


def test_proxies_are_believed_only_if_named() -> None:
    settings = Settings()
    assert configure(settings, ListenOptions()).proxy_headers is False
    named = configure(settings, ListenOptions(proxies="10.0.0.7"))
    assert (named.proxy_headers, named.forwarded_allow_ips) == (True, "10.0.0.7")
