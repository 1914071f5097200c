"""What of a URL is for the drivers, what is ours, and what may be shown."""

from __future__ import annotations

import pytest

from oncekey.errors import Misuse
from oncekey.stores.postgres.connection import Address, split, with_application_name

URL = "postgresql://user:p%40ss@one:5432,two/keys"


def test_our_parameters_become_options() -> None:
    url = f"{URL}?pgbouncer=true&allow=unsafe-durability&timeout_s=1.5&connect_timeout_s=2"
    libpq, options = split(url)
    assert libpq == URL
    assert options == {
        "pgbouncer": True,
        "allow": ["unsafe-durability"],
        "timeout_s": 1.5,
        "connect_timeout_s": 2.0,
    }


def test_the_other_parameters_stay_letter_for_letter() -> None:
    """A plus is no space to libpq, and an option may hold anything."""
    query = "sslmode=require&options=-c%20search_path%3Da+b&password=a+b%26"
    assert split(f"{URL}?{query}&pgbouncer=false") == (f"{URL}?{query}", {"pgbouncer": False})


def test_without_parameters_nothing_changes() -> None:
    assert split(URL) == (URL, {})


@pytest.mark.parametrize("parameter", ["pgbouncer=yes", "timeout_s=soon", "connect_timeout_s="])
def test_what_is_not_understood_is_told(parameter: str) -> None:
    with pytest.raises(Misuse, match=f"{parameter} is not understood"):
        split(f"{URL}?{parameter}")


def test_connections_have_a_name_for_whoever_looks_at_the_server() -> None:
    assert with_application_name(URL) == f"{URL}?application_name=oncekey"
    required = f"{URL}?sslmode=require"
    assert with_application_name(required) == f"{required}&application_name=oncekey"
    assert with_application_name(f"{URL}?application_name=shop") == f"{URL}?application_name=shop"


def test_asyncpg_is_not_given_what_only_libpq_knows() -> None:
    address = Address(
        f"{URL}?connect_timeout=3&sslmode=require&keepalives_idle=9&application_name=x"
    )
    assert address.asyncpg == f"{URL}?sslmode=require&application_name=x"


def test_p12_what_is_shown_holds_no_secret() -> None:
    shown = Address(f"{URL}?password=hidden&sslpassword=also").safe_url
    assert shown == "postgresql://user:***@one:5432,two/keys"


@pytest.mark.parametrize("quoted", ["p@ss", "p%40ss"])
def test_p12_a_password_that_a_driver_quotes_is_taken_out(quoted: str) -> None:
    told = Address(URL).scrub(f'could not parse "{quoted}@one"')
    assert told == 'could not parse "***@one"'


def test_an_address_without_a_password_leaves_every_text_as_it_is() -> None:
    assert Address("postgresql:///keys").scrub("any text") == "any text"
