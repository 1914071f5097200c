"""The command `oncekey`: run a command, and say in one line why it failed.

Exit codes are listed in docs/cli.md. Each command returns its own; those for failures are here.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Sequence

from oncekey.cli.output import one_line
from oncekey.cli.parser import parse_arguments
from oncekey.cli.store_options import url_of
from oncekey.errors import OncekeyError
from oncekey.stores.urls import redact

FAILED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    args = parse_arguments(argv)
    url = url_of(args)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # for a terminal that cannot show all characters
            stream.reconfigure(errors="backslashreplace")
    try:
        run: Callable[[argparse.Namespace], int] = args.run
        code = run(args)
        print(end="", flush=True)  # `print` allows for a missing stdout
        return code
    except OncekeyError as error:
        message = str(error).replace(url, redact(url)) if url else str(error)
        print(f"oncekey: {one_line(message)}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        _discard_stdout()
        return PIPE_CLOSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # such as a full disk where the output goes
        _discard_stdout()
        print(f"oncekey: {error}", file=sys.stderr)
        return FAILED


def _discard_stdout() -> None:
    """Keep Python from flushing again at exit, and from reporting that failure."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
