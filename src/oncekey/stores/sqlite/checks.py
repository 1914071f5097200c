"""Whether a SQLite file may be used where and as it is, and what is worth knowing about it.

This looks at the machine around the file; `store` asks for what is in the file.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

from oncekey._core.values import value
from oncekey.stores.checks import Finding, Risk, Size, advice, unsafe
from oncekey.stores.sqlite.connection import SQLITE_NEEDED, WAL_BYTES

RISKS = (Risk.DURABILITY, Risk.NETWORK_FILES)
MOUNTS = Path("/proc/self/mountinfo")
FREE_BYTES_MIN = 1_000_000_000
FREE_SHARE_MIN = 0.05

_NETWORK = frozenset(
    {
        *("nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "ceph", "lustre"),
        *("glusterfs", "gfs2", "ocfs2", "beegfs", "gpfs", "davfs", "pvfs2", "orangefs", "coda"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.davfs2"),
        *("fuse.gcsfuse", "fuse.mount-s3", "fuse.juicefs"),
    }
)
_FOREIGN = frozenset({"9p", "virtiofs", "vboxsf", "vmhgfs", "fuse.vmhgfs-fuse", "drvfs"})
"""Folders shared by the host of a virtual machine: whether they sync is up to the host."""
_VOLATILE = frozenset({"tmpfs", "ramfs"})


def file_system(path: str) -> str | None:
    """Return the kind of file system that a path is on; None if that is not known."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    folder = os.path.dirname(os.path.realpath(path))
    best, kind = "", None
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), left.split()[4])
        within = folder == mount or folder.startswith(mount.rstrip("/") + "/")
        if within and len(mount) >= len(best):  # of two mounts in one place the later one counts
            best, kind = mount, right.split()[0]
    return kind


def findings(path: str, synchronous: str) -> Iterator[Finding]:
    """Check all but the contents of the file."""
    yield _version()
    yield _durability(synchronous)
    yield place(file_system(path))


def _version() -> Finding:
    seen = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < SQLITE_NEEDED:
        why = f"the oldest that will do is {'.'.join(map(str, SQLITE_NEEDED))}"
        return unsafe("version", seen, why, "Use a newer Python, or a newer library libsqlite3")
    return Finding("version", seen)


def _durability(synchronous: str) -> Finding:
    seen = f"synchronous = {synchronous}"
    if synchronous == "OFF":
        return unsafe(
            "durability",
            seen,
            "a loss of power can forget what was acknowledged, and damage the whole file",
            "Leave synchronous=OFF out of the URL",
            Risk.DURABILITY,
        )
    if synchronous == "NORMAL":
        return advice(
            "durability",
            seen,
            "a loss of power forgets the last commits, and retries of them run again",
            "Leave synchronous=NORMAL out of the URL, if that must not happen",
        )
    return Finding("durability", seen)


def place(kind: str | None) -> Finding:
    """Judge the kind of file system that the file is on."""
    if kind in _NETWORK:
        return unsafe(
            "file system",
            kind or "",
            "two machines do not see each other's write-ahead log, and locks and syncs over a "
            "network are unreliable: records can be lost, the file can be damaged",
            "Put the file on a disk of this machine, or use a database server",
            Risk.NETWORK_FILES,
        )
    if kind in _FOREIGN or (kind or "").startswith("fuse"):
        return advice(
            "file system",
            kind or "",
            "whether it keeps what was synced is up to the machine that it comes from",
            "Put the file on a disk of this machine",
        )
    if kind in _VOLATILE:
        return advice(
            "file system",
            kind or "",
            "it lives in memory: a restart of this machine forgets everything",
            "Put the file on a disk",
        )
    return Finding("file system", kind or "not known on this system")


# ------------------------------------------------------------------------------- a thorough look


@value
class Surroundings:
    """The file from outside: its size, access rights and disk."""

    path: str
    bytes: int
    wal_bytes: int
    mode: int
    folder_writable: bool
    disk_bytes: int
    disk_free_bytes: int

    def size(self) -> Size:
        return Size(self.bytes + self.wal_bytes, None, "the file and its write-ahead log")

    def findings(self) -> Iterator[Finding]:
        yield self._access()
        yield self._log()
        yield self._disk()

    def _access(self) -> Finding:
        seen = f"mode {self.mode:o}"
        if not self.folder_writable:
            return unsafe(
                "privileges",
                f"{seen}, in a folder that this user may not write to",
                "SQLite keeps two more files beside it",
                f"Run `chmod u+wx {os.path.dirname(self.path)}` as its owner",
            )
        if self.mode & 0o077:
            return advice(
                "privileges",
                seen,
                "other users of this machine may read kept answers",
                f"Run `chmod 600 {self.path}`",
            )
        return Finding("privileges", f"{seen}: only its owner")

    def _log(self) -> Finding:
        seen = f"{self.wal_bytes:,} bytes"
        if self.wal_bytes > 8 * WAL_BYTES:
            return advice(
                "write-ahead log",
                seen,
                "a long read keeps it from being overwritten",
                f"Run `lsof {self.path}` to see which process it is",
            )
        return Finding("write-ahead log", seen)

    def _disk(self) -> Finding:
        seen = f"{self.disk_free_bytes:,} of {self.disk_bytes:,} bytes are free"
        if self.disk_free_bytes < min(FREE_BYTES_MIN, FREE_SHARE_MIN * self.disk_bytes):
            why = "when it is full, new claims are refused"
            return advice("disk", seen, why, "Free some space, or shorten retention")
        return Finding("disk", seen)


def look_around(path: str) -> Surroundings:
    """Look at the file without opening it."""
    found, disk = os.stat(path), shutil.disk_usage(path)
    wal = f"{os.path.realpath(path)}-wal"  # SQLite resolves links
    return Surroundings(
        path,
        found.st_size,
        os.path.getsize(wal) if os.path.exists(wal) else 0,
        stat.S_IMODE(found.st_mode),
        os.access(os.path.dirname(path), os.W_OK | os.X_OK),
        disk.total,
        disk.free,
    )
