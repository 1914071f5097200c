"""The real application on a real database, with a card network that a test can hold up."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import sqlalchemy as sa
from starlette.testclient import TestClient

from payments.access.accounts import LOCAL_KEY
from payments.access.rate_limits import Rates
from payments.app import create_app
from payments.network import Network, NetworkDown, NetworkRefused
from payments.network.book import SCHEMA, Book, RequestRefused, validate_fields
from payments.settings import Settings
from payments.storage.database import Database
from payments.storage.tables import metadata

WAIT_S_MAX = 30.0
KINDS = {
    "/authorisations": "authorisation",
    "/captures": "capture",
    "/voids": "void",
    "/refunds": "refund",
}
UNLIMITED = Rates().but(
    [f"{name}=off" for name in ("reads", "writes", "replays", "account", "total", "strangers")]
)


class InProcessNetwork(Network):
    """The card network's own book, called directly instead of over HTTP."""

    def __init__(self) -> None:
        self.file = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.file.executescript(SCHEMA)
        self._book = Book(self.file)
        self._turn = threading.Lock()
        self.down = 0
        """How many calls get no answer, though they are executed."""
        self.open = threading.Event()
        self.open.set()
        self.waiting = threading.Semaphore(0)

    @contextmanager
    def hold_up(self) -> Iterator[None]:
        """Make calls to the network wait until the end of this; `waiting` counts them."""
        self.open.clear()
        try:
            yield
        finally:
            self.open.set()

    def wait_until_called(self, times: int = 1) -> None:
        """Wait until that many calls are held up."""
        for _ in range(times):
            assert self.waiting.acquire(timeout=WAIT_S_MAX)

    def rows(self, kind: str) -> list[tuple[str, int]]:
        """Return (reference, amount) of what was executed."""
        with self._turn:
            return self.file.execute(
                "SELECT reference, amount FROM transactions WHERE kind = ? AND declined IS NULL",
                (kind,),
            ).fetchall()

    def close(self) -> None:
        """Do nothing: tests look into the book after the application has closed."""

    def _post(self, path: str, key: str, **fields: Any) -> dict[str, Any]:
        if not self.open.is_set():
            self.waiting.release()
            assert self.open.wait(WAIT_S_MAX)
        kind = KINDS[path]
        try:
            with self._turn:
                done = self._book.execute(kind, key, validate_fields(kind, fields), lambda: None)
        except RequestRefused as error:
            raise NetworkRefused(error.code, str(error)) from None
        if self.down:
            self.down -= 1
            raise NetworkDown("its answer was lost")
        answer: dict[str, Any] = json.loads(done.body)
        return answer


class Api:
    """An application, and a client for it."""

    def __init__(self, data: Path, database_url: str = "", **settings: Any) -> None:
        self.settings = Settings(
            data=data, database_url=database_url, local_key=True, rates=UNLIMITED, **settings
        )
        self.network = InProcessNetwork()
        self.database = Database(self.settings)
        self.database.create_tables()
        self.client = TestClient(
            create_app(self.settings, self.network),
            base_url="http://127.0.0.1",
            client=("127.0.0.1", 50000),
            headers={"authorization": f"Bearer {LOCAL_KEY}"},
            raise_server_exceptions=False,
        )

    def post(self, path: str, params: Any = None, key: str | None = None) -> httpx2.Response:
        """Send a form, like Stripe's libraries."""
        headers = {"idempotency-key": key} if key is not None else {}
        return self.client.post(f"/v1/{path}", data=params or {}, headers=headers)

    def post_json(self, path: str, params: Any, key: str | None = None) -> httpx2.Response:
        headers = {"idempotency-key": key} if key is not None else {}
        return self.client.post(f"/v1/{path}", json=params, headers=headers)

    def get(self, path: str, **query: Any) -> httpx2.Response:
        return self.client.get(f"/v1/{path}", params=query)

    def create(self, path: str, params: Any = None, key: str | None = None) -> dict[str, Any]:
        """Send a POST that must succeed; return its object."""
        response = self.post(path, params, key)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def post_refused(self, path: str, params: Any = None, status: int = 400) -> dict[str, Any]:
        """Send a POST that must fail; return its error."""
        response = self.post(path, params)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    def charge(self, amount: int = 2000, **more: Any) -> dict[str, Any]:
        params = {"amount": amount, "currency": "eur", "source": "tok_visa", **more}
        return self.create("charges", params)

    def events(self, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("events", type=kind, limit=100).json()["data"]
        return found

    def count(self, table: str) -> int:
        with self.database.read() as connection:
            return connection.execute(
                sa.select(sa.func.count()).select_from(metadata.tables[table])
            ).scalar_one()


@contextmanager
def start_api(data: Path, database_url: str = "", **settings: Any) -> Iterator[Api]:
    """Start the application, and stop it afterwards."""
    api = Api(data, database_url, **settings)
    with api.client:
        yield api
    api.database.close()
