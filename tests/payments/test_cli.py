"""The command line: what an operator types, and what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from payments import cli
from tests.payments.delivery_setup import delivery_setup


@pytest.fixture
def data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.main(["migrate", "--data", str(tmp_path / "new" / "data")]) == 0
    assert capsys.readouterr().out == "All tables exist.\n"
    return str(tmp_path / "new" / "data")


def say(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert cli.main([*words]) == status
    said = capsys.readouterr()
    return said.out if status == 0 else said.err + said.out


def test_an_account_from_its_first_key_to_its_last(
    data: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = say(capsys, "account", "create", "Tea shop", "--data", data)
    account, key = re.findall(r"acct_\w+|sk_test_\w+", made)
    assert "shown only now" in made
    listed = say(capsys, "account", "list", "--data", data)
    assert f"{account}  Tea shop" in listed
    assert f"sk_test_…{key[-4:]}" in listed
    assert key not in listed
    assert "sk_test_local  works on this machine only" in listed
    new = say(capsys, "account", "rotate", account, "--overlap", "30m", "--data", data)
    assert "sk_test_" in new
    assert "work until" in new
    output = say(capsys, "account", "revoke", account, f"sk_test_…{key[-4:]}", "--data", data)
    assert f"revoked  sk_test_…{key[-4:]}" in output
    assert "within 2 seconds" in output
    listed = say(capsys, "account", "list", "--data", data)
    assert len(re.findall("revoked 2", listed)) == 1
    say(capsys, "account", "revoke", account, "--all", "--data", data)


def test_what_cannot_be_done_is_said_plainly(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    rotate = say(capsys, "account", "rotate", "acct_none", "--data", data, status=1)
    assert rotate.startswith("There is no account acct_none. ")
    which = say(capsys, "account", "revoke", "acct_none", "--data", data, status=2)
    assert "--all" in which


def test_what_is_kept_in_a_database_elsewhere_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    say(capsys, "migrate", "--database", f"sqlite:///{tmp_path / 'elsewhere.db'}")
    assert not Path("payments-data").exists()


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_a_folder_that_cannot_be_made(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    told = say(capsys, command, "--data", str(file / "data"), status=1)
    assert "choose another with --data" in told


def test_an_event_is_delivered_once_more(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    with delivery_setup("", Path(data)) as post:
        account = post.tenant.removesuffix("/test")
        event = post.event("charge.succeeded")
        told = say(capsys, "resend", account, event, "--data", data, status=1)
        assert "nothing will be sent" in told
        endpoint = post.endpoint("https://hooks.example.com/", "charge.failed")
        say(capsys, "resend", account, event, "--data", data, status=1)
        chosen = ("--endpoint", endpoint, "--data", data)
        told = say(capsys, "resend", account, event, *chosen)
        [delivery] = post.deliveries()
        assert told == f"charge.succeeded will be sent again, as {delivery.id}.\n"
        told = say(capsys, "resend", account, "evt_none", "--data", data, status=1)
        assert told == "No such event: 'evt_none'\n"


def test_a_database_that_was_not_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = say(capsys, "account", "list", "--data", str(tmp_path), status=1)
    assert "./dev payments migrate" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--limit", "speed=1/second"], "there is no limit"),
        (["--limit", "writes=often"], "not a rate"),
        (["--workers", "0"], "--workers"),
        (["--certificate", "no.pem"], "both"),
        (["--certificate", "no.pem", "--private-key", "no.key"], "PEM"),
        (["--database", "mysql://x"], "postgresql://"),
        (["--port", "99999"], "up to 65535"),
        (["--body-bytes-max", "0"], "from 1 up"),
        (["--drain-s-max", "-5"], "from 1 up"),
        (["--redis", "nonsense"], "redis://user:password@host:6379/0"),
        (["--network", "nonsense"], "http://127.0.0.1:8001"),
        (["--network", "http://127.0.0.1:99999"], "http://127.0.0.1:8001"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_are_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert told in say(capsys, "serve", "--data", str(tmp_path), *words, status=1)


@pytest.mark.parametrize(
    ("words", "status"), [(["serve"], 1), (["account", "list"], 1), (["reconcile"], 2)], ids=str
)
def test_p12_an_address_that_cannot_be_read_is_told_without_its_password(
    capsys: pytest.CaptureFixture[str], words: list[str], status: int
) -> None:
    """An @ in a password is taken for the end of it, and what follows for a port."""
    told = say(capsys, *words, "--database", "postgresql://me:pa@ss:word@db/shop", status=status)
    assert "%40 for @" in told
    assert "word@" not in told.replace("password@", "")


def test_p12_nor_is_the_limits_redis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A / in a password ends the host, and what is before it is taken for a port."""
    redis = "redis://:pass/word@cache:6379/0"
    for workers in ("1", "2"):
        words = ["--data", str(tmp_path), "--workers", workers, "--redis", redis]
        told = say(capsys, "serve", *words, status=1)
        assert "%2F for /" in told
        assert "pass" not in told.replace("password", "")


@pytest.mark.parametrize(
    "words", [[], ["serve"], ["account"], ["account", "rotate"], ["migrate"], ["resend"]]
)
def test_every_command_explains_itself(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert ended.value.code == 0
    assert "./dev payments" in capsys.readouterr().out


def test_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--data", str(tmp_path), "--webhook-network", "everywhere"])
    assert "10.1.0.0/16" in capsys.readouterr().err


def test_durations() -> None:
    assert [cli._duration(text) for text in ("0s", "30m", "24h", "7d")] == [0, 1800, 86400, 604800]
    with pytest.raises(Exception, match="write a time as"):
        cli._duration("soon")


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon"])
def test_seconds_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--data", str(tmp_path), f"--wait-s={text}"])
    assert "write seconds as 10 or 0.5" in capsys.readouterr().err
    assert cli._seconds("0.5") == 0.5
