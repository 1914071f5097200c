"""Hostile bodies: how long a `GET` takes beside one that is made to cost as much as possible."""

from __future__ import annotations

import gzip
import http.client
import shutil
import threading
import time
import uuid
from collections.abc import Callable
from statistics import median

from bench.app_process import AppProcess
from bench.machine import ForeignCpu
from bench.rounds import Settings, say
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from tests.servers import folders

RUNS, RUNS_QUICK = 10, 2
GOAL = Goal(50.0, at_least=False, unit="ms")
HOW = (
    "One process of uvicorn. While it is sent a body that is made to cost as much as possible, "
    "under a new key, another client asks it for a page, over and over: the longest that a `GET` "
    "took, median of ten runs, beside the longest without such a body in the same time. The "
    "handler reads the body and does nothing with it."
)
_S = 1.5
"""For the estimate: how long one run takes."""
MIB = 1_048_576
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=b"

Sent = tuple[str, bytes, str]
"""A content type, a body and its coding."""


def _array(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * ((size - 2) // (len(item) + 1))) + b"]"


def _parts(size: int) -> bytes:
    content = b"x" * (size // 10_000 - 40)
    return (b"--b\r\na:b\r\nc:d\r\ne:f\r\n\r\n" + content + b"\r\n") * 9_990 + b"--b--\r\n"


BODIES: dict[str, Callable[[], Sent]] = {
    "10 MiB of JSON, all `1e308`": lambda: (JSON, _array(b"1e308", 10 * MIB), ""),
    "1 MiB of JSON, all `1e308`": lambda: (JSON, _array(b"1e308", MIB), ""),
    "1 MiB of JSON, all `[]`": lambda: (JSON, _array(b"[]", MIB), ""),
    '1 MiB of JSON, all `{"a":1}`': lambda: (JSON, _array(b'{"a":1}', MIB), ""),
    "1.6 KB of gzip, 1 MiB of JSON": lambda: (
        JSON,
        gzip.compress(_array(b"1e308", MIB), 9, mtime=0),
        "gzip",
    ),
    "1 MiB of a form, all escapes": lambda: (FORM, (b"a=" + b"%41" * MIB)[:MIB], ""),
    "10 MiB of a form": lambda: (FORM, (b"a=" + b"%41" * 10 * MIB)[: 10 * MIB], ""),
    "10 MiB of multipart, 10,000 parts": lambda: (MULTIPART, _parts(10 * MIB), ""),
    "10 MiB of bytes": lambda: ("application/octet-stream", bytes(10 * MIB), ""),
}


def section(settings: Settings) -> Section:
    folder = folders.private("bodies")
    rows: list[Row] = []
    try:
        with AppProcess(f"sqlite:///{folder / 'keys.db'}") as served:
            for what, make in BODIES.items():
                rows += try_rows(what, lambda: [_row(served, what, make(), settings)], GOAL)  # noqa: B023
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Section("Hostile bodies", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    return len(BODIES) * _runs(settings) * 2 * _S


def _runs(settings: Settings) -> int:
    return RUNS_QUICK if settings.quick else RUNS


def _row(served: AppProcess, what: str, sent: Sent, settings: Settings) -> Row:
    foreign = ForeignCpu()
    beside, alone = [], []
    for _ in range(_runs(settings)):
        took_s, worst_s = _worst_beside(served, lambda: _post(served.port, sent))
        beside.append(1e3 * worst_s)
        alone.append(1e3 * _worst_beside(served, lambda: time.sleep(took_s))[1])  # noqa: B023
    say(f"{what}: {median(beside):.1f} ms, without it {median(alone):.1f} ms")
    return Row(
        f"longest `GET` beside {what}",
        ours=f"{median(beside):.1f} ms",
        limit=f"{median(alone):.1f} ms",
        value=median(beside),
        low=min(beside),
        high=max(beside),
        goal=GOAL,
        unit="ms",
        foreign_percent=foreign.percent(),
    )


def _worst_beside(served: AppProcess, work: Callable[[], None]) -> tuple[float, float]:
    """How long the work took, and the longest `GET` meanwhile."""
    over, ready = threading.Event(), threading.Event()
    worst_s = [0.0]

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
        while not over.is_set():
            began = time.monotonic()
            connection.request("GET", "/runs")
            connection.getresponse().read()
            if ready.is_set():
                worst_s[0] = max(worst_s[0], time.monotonic() - began)
            ready.set()
        connection.close()

    asking = threading.Thread(target=ask)
    asking.start()
    ready.wait()
    began = time.monotonic()
    try:
        work()
    finally:
        over.set()
        asking.join()
    return time.monotonic() - began, worst_s[0]


def _post(port: int, sent: Sent) -> None:
    content_type, body, coding = sent
    headers = {"Content-Type": content_type, "Idempotency-Key": str(uuid.uuid4())}
    headers |= {"Content-Encoding": coding} if coding else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/uploads", body, headers)
    answer = connection.getresponse()
    told = answer.read()
    connection.close()
    if answer.status != 201 or told != b"%d" % len(body):
        raise RuntimeError(f"the upload was answered {answer.status}: {told[:200]!r}")
