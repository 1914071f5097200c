"""Payments: a charge through the whole API, with oncekey and without it."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from bench import machine, postgres
from bench.rounds import WARMED_UP, Settings, contest, cpu_row
from bench.subject import try_rows
from bench.table import Goal, Row, Section
from payments.access.accounts import LOCAL_KEY
from tests.payments.api_process import ApiProcess
from tests.payments.card_network import CardNetwork

CONNECTIONS = (1, 16)
KEYS_REPLAYED = 200
FIRST = Goal(0.5)
REPLAY = Goal(3.0)
HOW = (
    "The payments API on uvicorn, one worker process; every request is a charge: checked, written "
    "as pending, authorised by the card network, which is a process of its own and syncs its file "
    "for each, posted to the ledger with its event, answered. *First*: every request has a new "
    "key. The limit is the same handlers with idempotency switched off; that of *replay* is the "
    "first charge. SQLite with `synchronous=FULL`, PostgreSQL with `fsync` on."
)
_BODY = b"amount=2000&currency=eur&source=tok_visa"
_HEAD = (
    b"POST /v1/charges HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n"
    b"Idempotency-Key: %%s\r\n\r\n" % (LOCAL_KEY.encode(), len(_BODY))
)


@contextmanager
def _sqlite() -> Iterator[str]:
    yield ""


@contextmanager
def _postgres() -> Iterator[str]:
    with postgres.start() as server:
        yield server.url


DATABASES = {"SQLite": _sqlite, "PostgreSQL": _postgres}


def section(settings: Settings) -> Section:
    rows = []
    for name, start in DATABASES.items():
        rows += try_rows(f"payments on {name}", partial(_rows, name, start, settings))
    return Section("Payments", HOW, tuple(rows))


def estimate_s(settings: Settings) -> float:
    return len(DATABASES) * (len(CONNECTIONS) * settings.estimate_s(3) + 10)


def _rows(
    name: str, start: Callable[[], AbstractContextManager[str]], settings: Settings
) -> list[Row]:
    with (
        tempfile.TemporaryDirectory() as folder,
        start() as url,
        CardNetwork(Path(folder)) as network,
        _start_api(Path(folder) / "with", url, network) as guarded,
        _start_api(Path(folder) / "without", url, network, idempotent=False) as plain,
    ):
        return [
            row
            for connections in CONNECTIONS
            for row in _contest(name, connections, guarded, plain, settings)
        ]


def _start_api(
    folder: Path, url: str, network: CardNetwork, *, idempotent: bool = True
) -> ApiProcess:
    folder.mkdir()
    return ApiProcess(folder, database_url=url, network_url=network.url, idempotent=idempotent)


def _contest(
    name: str, connections: int, guarded: ApiProcess, plain: ApiProcess, settings: Settings
) -> list[Row]:
    title = f"{name}, {connections} connection{'s' if connections > 1 else ''}"
    replayed = [f"{uuid.uuid4().hex}-{number}" for number in range(KEYS_REPLAYED)]
    _Charges(guarded, connections, iter(replayed))(settings.seconds * 60)
    loads = {
        "without": _Charges(plain, connections, _new_keys()),
        "first": _Charges(guarded, connections, _new_keys()),
        "replay": _Charges(guarded, connections, itertools.cycle(replayed)),
    }
    result = contest(title, loads, settings)
    ours, limit = (loads[name].cpu_us[WARMED_UP:] for name in ("first", "without"))
    return [
        result.row(f"{title}, first charge", "first", "without", FIRST),
        result.row(f"{title}, replay", "replay", "first", REPLAY),
        cpu_row(f"{title}, first charge: CPU of the worker", ours, limit),
    ]


def _new_keys() -> Iterator[str]:
    prefix = uuid.uuid4().hex
    return (f"{prefix}-{number}" for number in itertools.count())


class _Charges:
    """A contender: charges over several connections, with these keys, each answered with 200."""

    def __init__(self, api: ApiProcess, connections: int, keys: Iterator[str]) -> None:
        self._api = api
        self._connections = connections
        self._keys = keys
        self.cpu_us: list[float] = []
        """What the worker used for each request, by round."""

    def __call__(self, seconds: float) -> float:
        cpu_s, started = machine.cpu_s(self._api.child.pid), time.monotonic()
        responses = asyncio.run(self._all(started + seconds))
        took_s = time.monotonic() - started
        self.cpu_us.append((machine.cpu_s(self._api.child.pid) - cpu_s) / responses * 1e6)
        return responses / took_s

    async def _all(self, until: float) -> int:
        return sum(await asyncio.gather(*(self._one(until) for _ in range(self._connections))))

    async def _one(self, until: float) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._api.port)
        responses = 0
        while time.monotonic() < until and (key := next(self._keys, None)) is not None:
            writer.write(_HEAD % key.encode() + _BODY)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
            responses += 1
        writer.close()
        await writer.wait_closed()
        return responses
