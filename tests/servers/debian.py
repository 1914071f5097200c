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


def unpacked(package: str, suite: str = "") -> Path:
    """The folder that holds the package's files; downloaded on first use.

    Several packages that belong together are named with a space between them. With a `suite` they
    are that release's, whatever this machine's is: they come with a C library and loader of theirs.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Failed(f"install {package}: this is no Debian or Ubuntu, so it cannot be fetched")
    cache = cache_folder()
    with open(cache / "fetching", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        options = _from_suite(cache / suite, suite) if suite else []
        finished = cache / suite / package.replace(" ", "+")
        if not finished.exists():
            left_out = ("perl",) if suite else ("libc6_",)  # the machine's own fits its loader
            _unpack(package, cache / suite, finished, options, left_out)
    return finished


def libraries(root: Path) -> list[Path]:
    """The library folders of unpacked packages, for LD_LIBRARY_PATH."""
    return [
        path for pattern in ("usr/lib/*-linux-*", "lib/*-linux-*") for path in root.glob(pattern)
    ]


def cache_folder() -> Path:
    """Where what was fetched is kept, for later runs."""
    # As root the servers run as nobody, who cannot see into root's home.
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = (Path("/var/cache") if os.geteuid() == 0 else home) / "oncekey-test"
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"no folder to unpack Debian packages in: {error}") from error
    return cache


def _from_suite(place: Path, suite: str) -> list[str]:
    """Options for apt to look into another release, at the mirror that this machine uses."""
    place.mkdir(exist_ok=True)
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=_DOWNLOAD_S_MAX)
    mirrors = [uri for uri in told.stdout.split() if uri.rstrip("/").endswith("/debian")]
    if not mirrors:
        raise Failed(f"this machine has no mirror of Debian to fetch {suite} from")
    sources = place / "sources.list"
    sources.write_text(f"deb {mirrors[0]} {suite} main\n")
    return [f"Dir::Etc::sourcelist={sources}", "Dir::Etc::sourceparts=/dev/null"]


def _unpack(
    package: str, cache: Path, finished: Path, more: list[str], left_out: tuple[str, ...]
) -> None:
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
        *more,
    ]
    apt = ["apt-get", "-q", *(word for option in options for word in ("-o", option))]
    fresh = cache / "lists" / "fresh"
    if not fresh.exists() or time.time() - fresh.stat().st_mtime > _LISTS_AGE_S_MAX:
        _run([*apt, "update"])
        fresh.touch()
    _run([*apt, "install", "-y", "--no-install-recommends", "--download-only", *package.split()])
    for archive in sorted(archives.glob("*.deb")):
        if not archive.name.startswith(left_out):
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
