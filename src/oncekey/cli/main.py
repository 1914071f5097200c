"""The command `oncekey`: runs what was asked for, and says in one line why it could not be done.

The exit codes are those of docs/cli.md: a command returns its own, here are those of what failed.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from oncekey.cli.output import one_line
from oncekey.cli.parser import parsed
from oncekey.cli.store_options import url_of
from oncekey.errors import OncekeyError
from oncekey.stores.urls import redact

FAILED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    args = parsed(argv)
    url = url_of(args)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show all characters
            stream.reconfigure(errors="backslashreplace")
    try:
        run: Callable[[argparse.Namespace], int] = args.run
        code = run(args)
        print(end="", flush=True)  # knows that there may be no stdout
        return code
    except OncekeyError as error:
        said = str(error).replace(url, redact(url)) if url else str(error)
        print(f"oncekey: {one_line(said)}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # whoever read our output has enough, as `head` does
        _print_no_more()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # such as a disk that is full, where the output goes
        _print_no_more()
        print(f"oncekey: {error}", file=sys.stderr)
        return FAILED


def _print_no_more() -> None:
    """Else Python would try again at its end, and say how that failed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
