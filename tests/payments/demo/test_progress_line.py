"""One line that is redrawn, and messages that stay."""

import io

import pytest

from payments.demo.supervisor import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_that_changes() -> None:
    screen = Terminal()
    ticker = ProgressLine(screen)
    for now, text in enumerate(("one", "two")):
        ticker.show(text, now)
    ticker.say("something happened")
    ticker.show("three", 2.0)
    assert screen.getvalue() == ("\r\x1b[Kone\r\x1b[Ktwo\r\x1b[Ksomething happened\n\r\x1b[Kthree")


def test_a_line_that_is_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "8")
    screen = Terminal()
    ProgressLine(screen).show("0123456789", 0.0)
    assert screen.getvalue() == "\r\x1b[K0123456"


def test_a_file_gets_a_line_every_few_seconds() -> None:
    file = io.StringIO()
    ticker = ProgressLine(file, every_s=5.0)
    for now in (0.0, 1.0, 4.9, 5.0, 9.0):
        ticker.show(f"at {now}", now)
    ticker.say("the end")
    assert file.getvalue() == "at 0.0\nat 5.0\nthe end\n"
