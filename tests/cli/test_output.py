"""Aligned columns, times in words, progress that does not get in the way."""

import doctest
import io

from oncekey._system.clock import FakeClock
from oncekey.cli import output as module
from oncekey.cli.output import CELL_CHARS_MAX, Progress, facts, table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_examples_in_the_documentation() -> None:
    assert doctest.testmod(module).failed == 0


def test_columns_are_aligned_and_numbers_stand_to_the_right() -> None:
    assert table(("NAME", "COUNT"), [("a", 1), ("longer", 12345)]).splitlines() == [
        "NAME     COUNT",
        "a            1",
        "longer  12,345",
    ]


def test_p11_cells_are_bounded() -> None:
    assert len(table(("NAME",), [("x" * 1000,)]).splitlines()[1]) == CELL_CHARS_MAX


def test_facts_are_aligned() -> None:
    assert facts([("id", "1"), ("state", "running")]) == "id     1\nstate  running"


def test_progress_on_a_terminal_is_one_line_that_vanishes() -> None:
    stream = Terminal()
    progress = Progress(stream, FakeClock())

    progress.say("1 so far")
    progress.say("2 so far")
    progress.clear()

    assert stream.getvalue() == "\r\x1b[K1 so far\r\x1b[K2 so far\r\x1b[K"


def test_progress_in_a_log_is_rare_and_plain() -> None:
    stream, clock = io.StringIO(), FakeClock()
    progress = Progress(stream, clock)

    for second in range(12):
        progress.say(f"{second} so far")
        clock.advance(1.0)
    progress.clear()

    assert stream.getvalue() == "5 so far\n10 so far\n"
