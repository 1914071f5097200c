"""A private PostgreSQL."""

import secrets
import signal
from collections.abc import Mapping, Sequence

import psycopg

from tests.servers.process import Server
from tests.servers.programs import SOURCES, find_tool, reachable


def start_postgres(
    *,
    durable: bool = False,
    settings: Mapping[str, str] | None = None,
    sources: Sequence[str] = SOURCES,
) -> "Postgres":
    """Start a fresh cluster. `durable` keeps commits through a power loss; the default is faster.

    Both keep commits through `kill()`: a killed process loses nothing the system has in memory.
    """
    return Postgres(durable, settings or {}, tuple(sources)).start()


class Postgres(Server):
    stop_signal = signal.SIGINT  # "fast": ends the sessions instead of waiting for them
    death_signal = signal.SIGQUIT  # "immediate": the postmaster takes its children along

    def __init__(
        self, durable: bool, settings: Mapping[str, str], sources: tuple[str, ...]
    ) -> None:
        super().__init__("postgres", reachable(find_tool("postgres", sources)))
        safety = {} if durable else {"fsync": "off", "full_page_writes": "off"}
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",  # their paths are limited to 107 bytes
            "max_connections": "200",
            **safety,
            **settings,
        }
        self._password = secrets.token_hex(8)
        self._initdb()

    def _initdb(self) -> None:
        secret = self.write("password", self._password)
        # A password that is kept by MD5 is checked at once; by SCRAM it takes longer than all else
        # of a connection, and every test makes several.
        options = ["--username=postgres", "--auth=md5", f"--pwfile={secret}"]
        options += ["--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions"]
        initdb = self.program.sibling("initdb").path
        self.run([str(initdb), *options, "-D", str(self.folder / "data")])

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"

    @property
    def version(self) -> str:
        return postgres_version(self.url)

    def command(self) -> list[str]:
        settings = {**self._settings, "port": str(self.port)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [str(self.program.path), "-D", str(self.folder / "data"), *options]

    def ready(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def postgres_version(url: str) -> str:
    with psycopg.connect(url, connect_timeout=5) as connection:
        return connection.info.parameter_status("server_version") or "unknown"
