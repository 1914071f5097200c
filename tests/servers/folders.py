"""Private folders that are gone when the run is, and the user that servers run as."""

import atexit
import contextlib
import os
import pwd
import re
import shutil
import tempfile
from pathlib import Path
from typing import TypedDict

_PREFIX = "oncekey-test-"


class Identity(TypedDict, total=False):
    """Arguments for Popen that drop the privileges of root."""

    user: int
    group: int
    extra_groups: list[int]


def identity() -> Identity:
    """PostgreSQL and PgBouncer refuse to run as root: as root, be nobody."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def give(path: Path) -> None:
    """Let the server own a file or folder that we made for it."""
    if who := identity():
        os.chown(path, who["user"], who["group"])


def reachable(path: Path) -> bool:
    """Can the user that servers run as get there?"""
    if not identity():
        return os.access(path, os.R_OK)
    return all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def private(name: str) -> Path:
    """A new folder below this process's own; removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_own()))
    give(folder)
    return folder


_own_folder: Path | None = None


def _own() -> Path:
    # The process id in the name tells which leftovers have nobody to remove them.
    global _own_folder
    if _own_folder is None:
        base = Path(tempfile.gettempdir())
        base = base if reachable(base / "any") else Path("/tmp")  # noqa: S108
        _remove_leftovers(base)
        _own_folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
        _own_folder.chmod(0o711)
        atexit.register(_remove, _own_folder, os.getpid())
    return _own_folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child must not remove its parent's servers
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(base: Path) -> None:
    for folder in base.glob(f"{_PREFIX}*"):
        found = re.match(rf"{_PREFIX}(\d+)-", folder.name)
        with contextlib.suppress(FileNotFoundError):  # its own process may be removing it
            if found and folder.stat().st_uid == os.getuid() and not _alive(int(found[1])):
                shutil.rmtree(folder, ignore_errors=True)


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
