"""The command."""

import re

import pytest

from simulator.__main__ import main
from simulator.bugs import BUGS


def test_a_campaign_reports_coverage_and_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--schedules", "300", "--processes", "1"]) == 0
    out, err = capsys.readouterr()

    assert "300 schedules" in out
    assert "Every promise was kept." in out
    assert re.search(r"running, lease live +[\d,]+ +[\d,]+", out)
    assert "schedules per CPU-second" in out
    assert "100%" in err


@pytest.mark.slow
@pytest.mark.parametrize("number", ["0", "-5", "many"])
def test_no_schedules_are_no_proof(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--schedules", number])
    assert "--schedules: must be a number, from 1 up" in capsys.readouterr().err


@pytest.mark.slow
def test_several_processes_run_the_same_schedules(capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for processes in ("1", "2"):
        assert main(["--schedules", "900", "--seed", "77", "--workers-processes", processes]) == 0
        out = capsys.readouterr().out
        told.append([line for line in out.splitlines() if "CPU" not in line])
    assert told[0] == told[1]


def test_a_seed_alone_shows_its_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4", "--timeline"]) == 0
    out = capsys.readouterr().out

    assert re.search(r"\d+\.\d{3}  w\d c\d+\.1 +asks insert", out)
    assert re.search(r"store +w\d c\d+\.1: insert\(token 1\) -> inserted, fence 1", out)
    assert re.search(r"seed 4, schedule [0-9a-f]{16}", out)


def test_a_planted_bug_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bug", "answer-before-commit"]) == 0
    out = capsys.readouterr().out

    assert BUGS["answer-before-commit"].story in out
    assert "BROKEN P4" in out
    assert "Found by seed 0, after 1 schedules." in out


def test_a_bug_that_is_not_found_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--bug", "start-over-by-old-read", "--schedules", "5"]) == 1
    assert "NOT FOUND" in capsys.readouterr().out


@pytest.mark.slow
def test_exhaustive(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--exhaustive", "--faults", "0"]) == 0
    assert main(["--exhaustive", "--faults", "1", "--bug", "no-lease"]) == 0
    assert "choices: " in capsys.readouterr().out
