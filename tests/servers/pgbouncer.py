"""A private PgBouncer in transaction mode, in front of a PostgreSQL."""

from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

import psycopg

from tests.servers.postgres import postgres_version
from tests.servers.process import Server
from tests.servers.programs import SOURCES, find_tool, reachable


def start_pgbouncer(postgres_url: str, *, sources: Sequence[str] = SOURCES) -> "PgBouncer":
    """Pool the server at the url; every database of it is reached under its own name."""
    return PgBouncer(postgres_url, tuple(sources)).start()


class PgBouncer(Server):
    def __init__(self, postgres_url: str, sources: tuple[str, ...]) -> None:
        super().__init__("pgbouncer", reachable(find_tool("pgbouncer", sources)))
        self._behind = urlsplit(postgres_url)

    @property
    def url(self) -> str:
        login = self._behind.netloc.rpartition("@")[0]
        return self._behind._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()

    @property
    def version(self) -> str:
        with psycopg.connect(self._console(), autocommit=True, prepare_threshold=None) as console:
            row = psycopg.ClientCursor(console).execute("SHOW VERSION").fetchone()
        return str(row[0]) if row else "unknown"

    def command(self) -> list[str]:
        user = unquote(self._behind.username or "postgres")
        password = unquote(self._behind.password or "")
        users = self.write("users", f'"{user}" "{password}"\n')
        behind = f"host={self._behind.hostname} port={self._behind.port or 5432}"
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "pool_mode": "transaction",
            "default_pool_size": 10,
            "max_client_conn": 500,
            "auth_type": "md5",
            "auth_file": users,
            "admin_users": user,
            "server_login_retry": 1,  # s; the default of 15 would outlast a test that restarts
        }
        lines = "".join(f"{name} = {value}\n" for name, value in settings.items())
        ini = self.write("pgbouncer.ini", f"[databases]\n* = {behind}\n\n[pgbouncer]\n{lines}")
        return [str(self.program.path), str(ini)]

    def ready(self) -> bool:
        try:
            return bool(postgres_version(self.url))
        except psycopg.OperationalError:
            return False

    def _console(self) -> str:
        return urlsplit(self.url)._replace(path="/pgbouncer").geturl()
