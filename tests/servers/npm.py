"""Packages for Node, as a package-lock.json names them, installed once in a cache."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.servers import debian
from tests.servers.programs import Unavailable, find_tool

_FILES = ("package.json", "package-lock.json", ".npmrc")
_INSTALL_S_MAX = 300


def node_modules(project: Path) -> Path:
    """The installed packages of the project in this folder; `Unavailable` says why there are none.

    What is installed is checked against the digests of the lock.
    """
    digest = hashlib.sha256(b"".join((project / name).read_bytes() for name in _FILES))
    try:
        cache = debian.cache_folder()
    except debian.Failed as failed:
        raise Unavailable(str(failed)) from failed
    finished = cache / f"npm-{digest.hexdigest()[:16]}"
    with open(cache / "npm-installing", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not finished.exists():
            _install(project, finished)
    return finished / "node_modules"


def _install(project: Path, finished: Path) -> None:
    npm = _npm()
    work = finished.with_name(f"{finished.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for name in _FILES:
        shutil.copy(project / name, work)
    started = time.monotonic()
    print(
        f"\n  installing Node packages into {finished} ...", end="", file=sys.__stderr__, flush=True
    )
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]
    try:
        done = subprocess.run(
            [*npm, "ci", *options],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=_INSTALL_S_MAX,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"npm took more than {_INSTALL_S_MAX} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr]
        raise Unavailable(f"npm ci failed, is there a registry to reach? {' '.join(lines)[:500]}")
    print(f" {time.monotonic() - started:.1f} s", file=sys.__stderr__, flush=True)
    work.rename(finished)


def _npm() -> list[str]:
    """npm is a script for the Node that it came with."""
    node = find_tool("node")
    ours = node.path.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
    if ours.exists():
        return [str(node.path), str(ours)]
    if found := shutil.which("npm"):
        return [found]
    raise Unavailable(f"npm: none came with {node.path}, and none is on the PATH")
