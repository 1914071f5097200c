"""A private ministack: DynamoDB's protocol over HTTP, in memory, one request at a time."""

import http.client
import sys
from importlib import metadata, util
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from tests.servers.process import Server
from tests.servers.programs import Program, Unavailable


def start_ministack() -> "Ministack":
    """Start an empty one. What it keeps is gone when it ends."""
    return Ministack().start()


class Ministack(Server):
    drops_root: ClassVar[bool] = False  # it is a part of our own Python, which may be out of reach

    def __init__(self) -> None:
        if util.find_spec("ministack") is None:
            raise Unavailable("ministack: no wheel installed")
        super().__init__("ministack", Program(Path(sys.executable), "wheel ministack"))

    @property
    def url(self) -> str:
        """Of the endpoint; a table's address is `table_url`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        return ministack_version(self.url)

    def command(self) -> list[str]:
        settings = {
            "GATEWAY_PORT": self.port,
            "BIND_HOST": "127.0.0.1",
            "SERVICES": "dynamodb",
            "LOG_LEVEL": "WARNING",
        }
        named = [f"{name}={value}" for name, value in settings.items()]
        return ["env", *named, str(self.program.path), "-m", "ministack"]

    def ready(self) -> bool:
        try:
            return _health(self.url)
        except (OSError, http.client.HTTPException):
            return False


def table_url(endpoint: str, table: str) -> str:
    """The address of a table there, as a store takes it. Any credentials will do."""
    return f"dynamodb://test:test@{table}?region=us-east-1&endpoint={endpoint}"


def ministack_version(url: str) -> str:
    _health(url)
    return f"ministack {metadata.version('ministack')}"


def _health(url: str) -> bool:
    place = urlsplit(url)
    client = http.client.HTTPConnection(place.hostname or "", place.port, timeout=2)
    try:
        client.request("GET", "/_ministack/health")
        return client.getresponse().status == 200
    finally:
        client.close()
