"""A private NATS with JetStream, whose streams are files and survive a crash."""

import json
import secrets
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from tests.servers.process import Server
from tests.servers.programs import SOURCES, find_tool, reachable


def start_nats(*, durable: bool = False, sources: Sequence[str] = SOURCES) -> "Nats":
    """Start an empty server; `durable` syncs its streams before every answer."""
    return Nats(durable, tuple(sources)).start()


class Nats(Server):
    def __init__(self, durable: bool, sources: tuple[str, ...]) -> None:
        super().__init__("nats", reachable(find_tool("nats", sources)))
        self._sync = "always" if durable else "2m"
        self._password = secrets.token_hex(8)

    @property
    def url(self) -> str:
        return f"nats://oncekey:{self._password}@127.0.0.1:{self.port}"

    @property
    def version(self) -> str:
        return nats_version(self.url)

    def command(self) -> list[str]:
        settings = {
            "host": "127.0.0.1",
            "port": self.port,
            "authorization": {"user": "oncekey", "password": self._password},
            "jetstream": {"store_dir": str(self.folder / "streams"), "sync_interval": self._sync},
        }
        file = self.write("nats.conf", json.dumps(settings))  # its own format allows for JSON
        return [str(self.program.path), "-c", str(file)]

    def ready(self) -> bool:
        try:
            return bool(_greeting(self.url).get("jetstream"))
        except (OSError, ValueError):
            return False


def nats_version(url: str) -> str:
    return f"nats {_greeting(url)['version']}"


def _greeting(url: str) -> dict[str, Any]:
    """What a server says of itself as soon as somebody connects."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port or 4222), timeout=2) as client:
        line = client.makefile().readline()
    told: dict[str, Any] = json.loads(line.removeprefix("INFO "))
    return told
