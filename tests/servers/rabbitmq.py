"""A private RabbitMQ node, with a port mapper (epmd) of its own that ends with it."""

import re
import secrets
import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.process import Server, free_port
from tests.servers.programs import SOURCES, Unavailable, find_tool, reachable

_HEADER = b"AMQP\x00\x00\x09\x01"
_VERSION = re.compile(rb"\x07versionS\x00\x00\x00.([0-9.]+)", re.DOTALL)


def start_rabbitmq(*, sources: Sequence[str] = SOURCES) -> "RabbitMQ":
    """Start an empty node. Durable queues keep persistent messages through `kill()`."""
    return RabbitMQ(tuple(sources)).start()


class RabbitMQ(Server):
    def __init__(self, sources: tuple[str, ...]) -> None:
        super().__init__("rabbitmq", reachable(find_tool("rabbitmq", sources)))
        self._erlang = _erlang(self.program.path)
        self._password = secrets.token_hex(8)
        self._mapper_port = free_port()
        self._node_port = free_port()

    @property
    def url(self) -> str:
        return f"amqp://oncekey:{self._password}@127.0.0.1:{self.port}/"

    @property
    def version(self) -> str:
        return rabbitmq_version(self.url)

    def command(self) -> list[str]:
        self._write_erl()
        self.write("plugins", "[].")
        self.write("rabbitmq.conf", self._settings())
        places = {
            "HOME": self.folder,  # where the node keeps its cookie
            "PATH": f"{self.folder}:/usr/sbin:/usr/bin:/sbin:/bin",
            "RUNNING_UNDER_SYSTEMD": "true",  # no shell stays in between
            "ERL_EPMD_PORT": self._mapper_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"oncekey{self.port}@localhost",
            "RABBITMQ_DIST_PORT": self._node_port,
            "RABBITMQ_CONFIG_FILE": self.folder / "rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": self.folder / "none",
            "RABBITMQ_CONF_ENV_FILE": self.folder / "none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": self.folder / "plugins",
            "RABBITMQ_MNESIA_BASE": self.folder / "data",
            "RABBITMQ_LOG_BASE": self.folder,
            "RABBITMQ_LOGS": "-",
            "ERL_CRASH_DUMP_BYTES": 0,
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        exports = [f"export {name}={shlex.quote(str(value))}" for name, value in places.items()]
        epmd, server = self._erlang / "bin" / "epmd", self.program.path
        # The port mapper is a child of the node and dies with it; by itself it would be a daemon.
        lines = [
            *exports,
            f"setpriv --pdeathsig KILL {shlex.quote(str(epmd))} &",
            f"exec {shlex.quote(str(server))}",
        ]
        return ["/bin/sh", str(self.write("start", "\n".join(lines)))]

    def _settings(self) -> str:
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "default_user": "oncekey",
            "default_pass": self._password,
            "log.console": "true",
            "log.console.level": "error",
            "disk_free_limit.absolute": "50MB",
        }
        return "".join(f"{name} = {value}\n" for name, value in settings.items())

    def _write_erl(self) -> None:
        """The `erl` of the packages believes to stand in /usr/lib; this one knows where it is."""
        emulator = next(self._erlang.glob("erts-*/bin"))
        places = {"ROOTDIR": self._erlang, "BINDIR": emulator, "EMU": "beam", "PROGNAME": "erl"}
        exports = [f"export {name}={shlex.quote(str(path))}" for name, path in places.items()]
        words = f'exec {shlex.quote(str(emulator / "erlexec"))} "$@"'
        self.write("erl", "\n".join(["#!/bin/sh", *exports, words])).chmod(0o700)

    def ready(self) -> bool:
        try:
            return bool(rabbitmq_version(self.url))
        except OSError:
            return False


def rabbitmq_version(url: str) -> str:
    """As the node says in its first frame."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port or 5672), timeout=2) as client:
        client.sendall(_HEADER)
        found = _VERSION.search(client.recv(4096))
    if found is None:
        raise OSError("this is no RabbitMQ")
    return f"rabbitmq {found[1].decode()}"


def _erlang(server: Path) -> Path:
    """The Erlang that came with it: …/lib/rabbitmq/lib/rabbitmq_server-N/sbin, …/lib/erlang."""
    if len(server.parents) > 4 and (found := server.parents[4] / "erlang").is_dir():
        return found
    raise Unavailable(f"rabbitmq: no Erlang beside {server}: install Debian's rabbitmq-server")
