"""What the command line of a soak says, and what its seed chooses."""

from __future__ import annotations

import pytest

from soak import drivers, engines
from soak.settings import BROKERS, KINDS, Settings, read


@pytest.mark.parametrize("engine", engines.ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_command_says_all_and_workers_are_told_the_same(engine: str, kind: str) -> None:
    settings = read(["--engine", engine, "--kind", kind, "--seed", "7", "--sealed"], None)
    assert read(settings.command.split()[2:], None) == settings
    assert Settings.of_text(settings.as_text()) == settings


@pytest.mark.parametrize("engine", engines.ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_handlers_have_rows_wherever_the_engine_has_them(engine: str, kind: str) -> None:
    settings = read(["--engine", engine, "--kind", kind, "--seed", "7"], None)
    assert bool(settings.driver) == (engine in engines.ROWS)
    assert bool({"atomic", "joined"} & {*settings.routes}) == bool(settings.driver)


@pytest.mark.parametrize("broker", BROKERS)
def test_messages_go_from_an_outbox_which_is_beside_rows(
    broker: str, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = read(["--broker", broker, "--engine", "mariadb", "--seed", "7"], None)
    assert settings.broker == broker
    assert read(settings.command.split()[2:], None) == settings
    with pytest.raises(SystemExit):
        read(["--broker", broker, "--engine", "redis"], None)
    assert "an outbox needs one of" in capsys.readouterr().err


def test_seeds_choose_every_driver_that_fits() -> None:
    chosen = {read(["--engine", "postgres", "--seed", str(n)], None).driver for n in range(200)}
    assert chosen == {"psycopg", "sqlalchemy", "asyncpg", "async-psycopg", "async-sqlalchemy"}
    for engine in engines.ENGINES:
        blocking = drivers.matching_drivers(engine, blocking=True)
        assert not any(drivers.KINDS[name].awaited for name in blocking)


def test_a_driver_of_another_engine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        read(["--engine", "postgres", "--kind", "wsgi", "--driver", "asyncpg"], None)
    assert "psycopg, sqlalchemy" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_what_is_no_time_to_soak_for_is_refused(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        read(["--seconds", seconds], None)
    assert "give a duration" in capsys.readouterr().err
