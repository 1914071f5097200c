"""Choosing a command and a store, and what is said when it cannot be done."""

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from oncekey.client import Journal
from tests.cli.conftest import Oncekey, Seed

# ------------------------------------------------------------------------ which store


def test_the_url_may_come_from_the_environment(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed("order-17")

    assert oncekey("count", "--json").json["completed"] == 1


def test_a_url_that_is_given_wins(oncekey: Oncekey, seed: Seed, tmp_path: Path) -> None:
    seed.completed("order-17")
    other = f"sqlite:///{tmp_path / 'other.db'}"
    oncekey("migrate", other)

    assert oncekey("count", other, "--json").json["total"] == 0


def test_without_any_url(oncekey: Oncekey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEKEY_STORE", raising=False)

    ran = oncekey("count")

    assert ran.code == 2
    assert "ONCEKEY_STORE" in ran.err


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("keys.db", "write sqlite:///keys.db"),
        ("mongodb://u:hunter2@h/db", "no store for mongodb://"),
        ("memory://", "cannot be seen from here"),
        ("sqlite:///", "sqlite:///keys.db"),
        ("sqlite://u:hunter2@h/keys.db", "sqlite:///keys.db"),
        ("redis://:hunter2@127.0.0.1:1/0", "127.0.0.1:1"),
        ("postgresql://u:hunter2@127.0.0.1:1/db", "127.0.0.1:1"),
    ],
)
def test_p12_a_store_that_cannot_be_used_is_one_line_without_passwords(
    oncekey: Oncekey, url: str, says: str
) -> None:
    ran = oncekey("count", url)

    assert ran.code == 2
    assert ran.out == ""
    assert says in ran.err
    assert ran.err.startswith("oncekey: ")
    assert ran.err.count("\n") == 1
    assert "hunter2" not in ran.err


def test_a_mistyped_path_is_told_and_not_created(oncekey: Oncekey, tmp_path: Path) -> None:
    path = tmp_path / "kyes.db"

    ran = oncekey("list", f"sqlite:///{path}")

    assert ran.code == 2
    assert f"no file {path}" in ran.err
    assert not path.exists()


def test_a_file_that_is_no_store(oncekey: Oncekey, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("milk, eggs, bread. " * 100)

    ran = oncekey("list", f"sqlite:///{path}")

    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "notes.txt" in ran.err


def test_a_file_of_somebody_else_is_told_and_not_touched(oncekey: Oncekey, tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as shop:
        shop.execute("CREATE TABLE orders (id)")
        shop.commit()
    before = path.read_bytes()

    ran = oncekey("list", f"sqlite:///{path}")

    assert ran.code == 2
    assert f"{path} has no tables of oncekey" in ran.err
    assert path.read_bytes() == before


def test_records_that_are_only_in_the_log_are_seen(
    oncekey: Oncekey, seed: Seed, tmp_path: Path
) -> None:
    """As when the application runs: its tables may not be in the file itself yet."""
    seed.completed("order-17")

    assert (tmp_path / "keys.db-wal").stat().st_size > 0
    assert oncekey("count", "--json").json["completed"] == 1


def test_a_folder_that_cannot_be_entered(
    oncekey: Oncekey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> os.stat_result:  # root, who may run this, is let in everywhere
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", refuse)

    ran = oncekey("list", f"sqlite:///{tmp_path / 'keys.db'}")

    assert ran.code == 2
    assert "keys.db cannot be read: Permission denied" in ran.err
    assert ran.err.count("\n") == 1


# ------------------------------------------------------------------------ usage


@pytest.mark.parametrize("fails", ["import no_such_package", "raise OSError('no settings')"])
@pytest.mark.parametrize("words", [("recover",), ("intents", "intents.db", "--resume")])
def test_an_application_that_cannot_be_imported_is_2_with_its_traceback(
    oncekey: Oncekey,
    words: tuple[str, ...],
    fails: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "failing_shop.py").write_text(fails)
    with Journal("intents.db") as journal:
        journal.key("order-17/pay")

    ran = oncekey(*words, "failing_shop:app")

    assert (ran.code, ran.out) == (2, "")
    assert 'failing_shop.py", line 1' in ran.err
    assert "oncekey: failing_shop could not be imported: " in ran.err.splitlines()[-1]


# ------------------------------------------------------------------------ as a process


def test_as_a_module_and_as_a_command(url: str, seed: Seed) -> None:
    seed.completed("order-17")
    script = Path(sys.executable).with_name("oncekey")

    for words in ([sys.executable, "-m", "oncekey"], [str(script)]):
        done = subprocess.run([*words, "count", "--json", url], capture_output=True, text=True)

        assert (done.returncode, done.stderr) == (0, "")
        assert '"completed": 1' in done.stdout


def test_a_reader_that_has_gone_is_no_error(url: str, seed: Seed) -> None:
    seed.completed("order-17")
    reader, writer = os.pipe()
    os.close(reader)

    words = [sys.executable, "-m", "oncekey", "list"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)

    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk_where_the_output_goes_is_told_in_one_line(url: str, seed: Seed) -> None:
    seed.completed("order-17")
    words = [sys.executable, "-m", "oncekey", "list"]

    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE)

    assert (done.returncode, done.stderr) == (2, b"oncekey: [Errno 28] No space left on device\n")


def test_without_anybody_to_print_to_it_is_done_all_the_same(url: str, seed: Seed) -> None:
    seed.completed("order-17")
    words = f"'{sys.executable}' -m oncekey sweep >&-"

    done = subprocess.run(["sh", "-c", words], capture_output=True)

    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_without_unicode(url: str, seed: Seed) -> None:
    seed.completed("order-17", tenant="Käse-\N{SNOWMAN}")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}

    done = subprocess.run(
        [sys.executable, "-m", "oncekey", "list"], capture_output=True, env=environment
    )

    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"K\xe4se-\u2603" in done.stdout


def sweep_process() -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "oncekey", "sweep", "--watch", "--every-s", "0.01", "--json"]
    return subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell lets what it runs in the background ignore this, and children inherit it.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def test_watch_sweeps_until_interrupted(url: str, hour_ago: Seed) -> None:
    hour_ago.completed("old", retention_s=60.0)

    with sweep_process() as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)

    assert lines[0] == b'{"removed": 1, "limit_reached": false}\n'
    assert lines[1:] == [b'{"removed": 0, "limit_reached": false}\n'] * 2
    assert (process.returncode, err) == (0, b"")


def test_watch_goes_on_once_its_store_is_back_and_fit(url: str, hour_ago: Seed) -> None:
    """A server is unfit while another takes over, as a file is that was taken away."""
    hour_ago.completed("order-17")
    path = Path(url.removeprefix("sqlite:///"))
    away = path.with_name("away")

    with sweep_process() as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        path.rename(away)
        told = [process.stderr.readline() for _ in range(3)]
        away.rename(path)
        hour_ago.completed("old", retention_s=60.0)
        swept = any(b'"removed": 1' in line for line in process.stdout)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)

    assert [line.endswith(b"; trying again in 0.01 s\n") for line in told] == [True] * 3
    assert (swept, process.returncode) == (True, 0)
