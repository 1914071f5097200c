"""A private MariaDB, and what it has in common with MySQL."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql

from tests.servers.process import Server
from tests.servers.programs import SOURCES, Program, find_tool, reachable

QUICK = {"innodb-flush-log-at-trx-commit": "2"}


def start_mariadb(
    *,
    durable: bool = False,
    settings: Mapping[str, str] | None = None,
    sources: Sequence[str] = SOURCES,
) -> "MariaDB":
    """Start an empty server. `durable` keeps commits through a power loss; the default is faster.

    Both keep commits through `kill()`: a killed process loses nothing the system has in memory.
    """
    safety = {} if durable else QUICK
    return MariaDB({**safety, **(settings or {})}, tuple(sources)).start()


class MySQLFamily(Server):
    """What MariaDB and MySQL share: settings, the first user, how to ask whether one is there."""

    def __init__(self, name: str, program: Program, settings: Mapping[str, str]) -> None:
        super().__init__(name, program)
        self._settings = settings
        self._password = secrets.token_hex(8)

    @property
    def url(self) -> str:
        return f"{self.name}://root:{self._password}@127.0.0.1:{self.port}/oncekey"

    @property
    def version(self) -> str:
        return mysql_version(self.url)

    def options(self) -> list[str]:
        """The options of every start; they know nothing of the machine's own settings."""
        settings = {
            "basedir": str(self.base),
            "datadir": str(self.folder / "data"),
            "tmpdir": str(self.folder),  # a server that starts removes what others have in theirs
            "bind-address": "127.0.0.1",
            "port": str(self.port),
            "socket": "socket",  # below datadir: whole paths are limited to 107 bytes
            "pid-file": str(self.folder / "pid"),
            "init-file": str(self.write("first.sql", self._first_statements())),
            "skip-name-resolve": "1",
            "max-connections": "200",
            "innodb-buffer-pool-size": "64M",
            **self._settings,
        }
        return ["--no-defaults", *(f"--{name}={value}" for name, value in settings.items())]

    def _first_statements(self) -> str:
        root = "'root'@'127.0.0.1'"
        return (
            f"CREATE USER IF NOT EXISTS {root} IDENTIFIED BY '{self._password}';\n"
            f"ALTER USER {root} IDENTIFIED BY '{self._password}';\n"
            f"GRANT ALL ON *.* TO {root} WITH GRANT OPTION;\n"
            "CREATE DATABASE IF NOT EXISTS oncekey;\n"
        )

    @property
    def base(self) -> Path:
        """Where the installation has its bin, sbin and share."""
        return self.program.path.parent.parent

    def ready(self) -> bool:
        try:
            mysql_connection(self.url).close()
        except (pymysql.MySQLError, OSError):
            return False
        return True


class MariaDB(MySQLFamily):
    def __init__(self, settings: Mapping[str, str], sources: tuple[str, ...]) -> None:
        super().__init__("mariadb", reachable(find_tool("mariadb", sources)), settings)
        install = self.base / "bin" / "mariadb-install-db"
        options = [f"--basedir={self.base}", f"--datadir={self.folder / 'data'}"]
        options += [f"--tmpdir={self.folder}"]  # two that start at once would clear one /tmp
        options += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        self.run([str(install), "--no-defaults", *options])

    def command(self) -> list[str]:
        places = [f"--lc-messages-dir={self.base}/share/mysql"]
        return [str(self.program.path), *self.options(), *places]


def mysql_connection(url: str, *, autocommit: bool = True) -> Any:
    """A connection as the tests themselves use one, usually a transaction for every statement."""
    address = urlsplit(url)
    return pymysql.connect(
        host=address.hostname,
        port=address.port or 3306,
        user=address.username,
        password=address.password or "",
        database=address.path.lstrip("/") or None,
        autocommit=autocommit,
        # Whatever a test has set for everybody.
        init_command="SET completion_type = 0, sql_safe_updates = 0, sql_big_selects = 1, "
        "sql_select_limit = 4294967295",
        connect_timeout=5,
        ssl_disabled=True,  # else it reads all certificates that the system trusts, each time
    )


def mysql_version(url: str) -> str:
    """As the server says: `11.8.3-MariaDB …` or `9.7.4`."""
    with mysql_connection(url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT VERSION()")
        (version,) = cursor.fetchone() or ("unknown",)
    return str(version)
