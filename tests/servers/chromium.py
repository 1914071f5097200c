"""A real Chromium, driven by Playwright: of this machine, or unpacked from Debian's packages.

    with started_chromium() as browser:
        page = browser.new_page()

Playwright's blocking API keeps an event loop running in its thread for as long as it is started:
nothing else in that thread may start one. So a browser belongs to one module of tests, not to a
whole run (the fixture `chromium` in tests/conftest.py).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers import debian, folders
from tests.servers.programs import Program, Unavailable, find_tool

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--no-first-run",
)
_START_MS_MAX = 60_000


@contextlib.contextmanager
def started_chromium() -> Iterator[Browser]:
    """Start it, without a window; `Unavailable` says why there is none."""
    program = find_tool("chromium")
    environment = {
        **program.environment(),
        **_unpacked(program),
        "HOME": str(folders.private("home")),  # what it leaves behind goes with the run
    }
    try:
        from playwright.sync_api import Error, sync_playwright
    except ModuleNotFoundError as error:
        raise Unavailable("chromium: the package playwright is not installed") from error
    with contextlib.suppress(Unavailable):  # its own Node needs a library that small systems lack
        os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", str(find_tool("node").path))
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(
                executable_path=program.path,
                args=[*_QUIET, "--no-sandbox"],  # there is none inside a container, nor for root
                env=environment,
                timeout=_START_MS_MAX,
            )
        except Error as error:
            raise Unavailable(f"chromium ({program.source}): {error.message[:500]}") from error
        with contextlib.closing(browser):
            yield browser


def _unpacked(program: Program) -> dict[str, str | float | bool]:
    """What unpacked packages need to find each other: more libraries, and their fonts."""
    if not program.source.startswith("Debian"):
        return {}
    root = program.path.parents[3]
    libraries = [path for each in debian.libraries(root) for path in (each, each / "pulseaudio")]
    fonts = folders.private("fonts") / "fonts.conf"
    fonts.write_text(_FONTS.format(folder=root / "usr/share/fonts", ours=fonts.parent))
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(str(path) for path in libraries if Path(path).is_dir()),
        "FONTCONFIG_FILE": str(fonts),
    }


_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><dir>/usr/share/fonts</dir><cachedir>{ours}</cachedir></fontconfig>
"""
