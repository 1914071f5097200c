"""A private MySQL: the real one, of Debian's unstable release. An optional job.

It is what that release has today, run by the loader and the C library that come with it. Set
`ONCEKEY_TEST_MYSQL=true` to test with it, or `ONCEKEY_TEST_MYSQL_URL` to test with one of your own.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.servers import debian
from tests.servers.mariadb import QUICK, MySQLFamily
from tests.servers.programs import Program, Unavailable

SUITE = "sid"


def wanted() -> bool:
    return os.environ.get("ONCEKEY_TEST_MYSQL") == "true"


def start_mysql(*, durable: bool = False, settings: Mapping[str, str] | None = None) -> "MySQL":
    """Start an empty server. `durable` keeps commits through a power loss; else it is faster."""
    safety = {} if durable else QUICK
    return MySQL({**safety, **(settings or {})}).start()


class MySQL(MySQLFamily):
    def __init__(self, settings: Mapping[str, str]) -> None:
        try:
            root = debian.unpacked("mysql-server-core", SUITE)
        except debian.Failed as reason:
            raise Unavailable(f"mysql: {reason}") from reason
        self._root = root
        [program] = root.glob("usr/sbin/mysqld")
        super().__init__("mysql", Program(program, f"Debian {SUITE}"), settings)
        options = ["--no-defaults", "--initialize-insecure", f"--basedir={self.base}"]
        options += [f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"]
        self.run([*self._loaded(), *options, *_ALWAYS])

    def _loaded(self) -> list[str]:
        loader: Path = next(self._root.glob("usr/lib*/ld-linux-*"))
        libraries = ":".join(str(path) for path in debian.libraries(self._root))
        return [str(loader), "--library-path", libraries, str(self.program.path)]

    def command(self) -> list[str]:
        return [*self._loaded(), *self.options(), *_ALWAYS]


_ALWAYS = ["--secure-file-priv=NULL", "--mysqlx=0"]
