"""Debian packages with all they depend on, unpacked in a cache. Installs nothing, needs no root."""

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path

_DOWNLOAD_S_MAX = 300
_LISTS_AGE_S_MAX = 24 * 3600


class Failed(Exception):
    """The packages could not be had; the text says why."""


def unpacked(package: str) -> Path:
    """The folder that holds the package's files; downloaded on first use.

    Several packages that belong together are named with a space between them.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Failed(f"install {package}: this is no Debian or Ubuntu, so it cannot be fetched")
    cache = _cache()
    finished = cache / package.replace(" ", "+")
    with open(cache / "fetching", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not finished.exists():
            _unpack(package, cache, finished)
    return finished


def libraries(root: Path) -> list[Path]:
    """The library folders of unpacked packages, for LD_LIBRARY_PATH."""
    return [
        path for pattern in ("usr/lib/*-linux-*", "lib/*-linux-*") for path in root.glob(pattern)
    ]


def _cache() -> Path:
    # As root the servers run as nobody, who cannot see into root's home.
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = (Path("/var/cache") if os.geteuid() == 0 else home) / "oncekey-test"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"no folder to unpack Debian packages in: {error}") from error
    return cache


def _unpack(package: str, cache: Path, finished: Path) -> None:
    work = finished.with_name(f"{finished.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    archives, files = work / "archives", work / "files"
    for folder in (cache / "lists" / "partial", archives / "partial", files):
        folder.mkdir(parents=True, exist_ok=True)
    (cache / "status").touch()  # an empty one: apt then fetches every dependency
    options = [
        f"Dir::State::lists={cache}/lists",
        f"Dir::State::status={cache}/status",
        f"Dir::Cache={cache}",
        f"Dir::Cache::archives={archives}",
        "APT::Sandbox::User=",
        "Acquire::Languages=none",
        "Acquire::Retries=2",
        "Acquire::http::Timeout=20",
        "Debug::NoLocking=1",
    ]
    apt = ["apt-get", "-q", *(word for option in options for word in ("-o", option))]
    fresh = cache / "lists" / "fresh"
    if not fresh.exists() or time.time() - fresh.stat().st_mtime > _LISTS_AGE_S_MAX:
        _run([*apt, "update"])
        fresh.touch()
    _run([*apt, "install", "-y", "--no-install-recommends", "--download-only", *package.split()])
    for archive in sorted(archives.glob("*.deb")):
        if not archive.name.startswith("libc6_"):  # the machine's own fits its loader
            _run(["dpkg-deb", "-x", str(archive), str(files)])
    files.rename(finished)
    shutil.rmtree(work)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_S_MAX)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines() or [str(error)]
        raise Failed(f"{command[0]} failed: {lines[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{command[0]} took more than {_DOWNLOAD_S_MAX} s") from error
