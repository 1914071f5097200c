"""A disk of its own for a server, whose power can be cut.

It is a file with a file system in it. What a program writes reaches the file when it is synced, or
when the system thinks fit; a copy of the file is therefore what a disk holds after a power cut.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

from tests.servers import folders
from tests.servers.programs import Unavailable

_BYTES = 256 * 1024 * 1024


class Disk:
    """Mounted at `path` while it is open."""

    def __init__(self, copy_of: Path | None = None) -> None:
        self._folder = folders.private("disk")
        self._image = self._folder / "image"
        self.path = self._folder / "mounted"
        self.path.mkdir()
        try:
            if copy_of is None:
                with open(self._image, "wb") as image:
                    image.truncate(_BYTES)
                _run("mke2fs", "-q", "-F", "-t", "ext4", str(self._image))
            else:
                shutil.copy(copy_of, self._image)
            _run("mount", "-o", "loop", str(self._image), str(self.path))
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        folders.give(self.path)

    def after_power_cut(self) -> "Disk":
        """Another disk, which holds what this one would if the power were cut now."""
        return Disk(self._image)

    def close(self) -> None:
        _run("umount", "-l", str(self.path))
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _run(*command: str) -> None:
    if os.geteuid() != 0:
        raise Unavailable("cutting the power of a disk needs root, to mount one")
    program = shutil.which(command[0]) or shutil.which(command[0], path="/usr/sbin:/sbin")
    if program is None:
        raise Unavailable(f"cutting the power of a disk needs {command[0]}")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {done.stderr.strip()}")
