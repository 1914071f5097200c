"""Which store a URL names, what is said when it names none, and that passwords are not shown."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oncekey
from oncekey._engine.registry import registry_of
from oncekey.errors import Misuse
from oncekey.stores.base import Store, location_of
from oncekey.stores.memory import MemoryStore
from oncekey.stores.sealed.secrets import read_secrets
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.stores.urls import KINDS, as_store, open_store, redact, scrub
from tests.stores.sealed.kit import SECRET

PASSWORD = "hunter2"


class Absent(importlib.abc.MetaPathFinder):
    """Makes packages look as if they were not installed."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in self._names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str, store: str) -> None:
    """Take the driver away, and what was imported with it."""
    ours = f"oncekey.stores.{store}"
    imported = dict(sys.modules)
    for name, module in imported.items():
        is_ours = name == ours or name.startswith(f"{ours}.")
        if is_ours:  # a package also holds its modules as attributes: what is put back is the same
            package, _, attribute = name.rpartition(".")
            monkeypatch.setattr(imported[package], attribute, module)
        if is_ours or name.partition(".")[0] in packages:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(*packages), *sys.meta_path])


# ------------------------------------------------------------------------ choosing


def test_memory_is_a_new_store_each_time() -> None:
    first, second = open_store("memory://"), open_store("memory://")

    assert isinstance(first, MemoryStore)
    assert first is not second


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("sqlite:///keys.db", "sqlite"),
        ("postgresql://u:p@127.0.0.1/db", "postgres"),
        ("postgres://u:p@127.0.0.1/db", "postgres"),
        ("postgresql://u:p@127.0.0.1:5432,127.0.0.2:5433/db", "postgres"),
        ("POSTGRESQL://u:p@127.0.0.1/db", "postgres"),
        ("redis://127.0.0.1:6379/0", "redis"),
        ("rediss://127.0.0.1:6379/0", "redis"),
        ("unix:///run/redis.sock", "redis"),
        ("redis+unix:///run/redis.sock", "redis"),
        ("valkey://127.0.0.1:6379/0", "redis"),
        ("valkeys://127.0.0.1:6379/0", "redis"),
        ("redis+cluster://:p@127.0.0.1:6379,127.0.0.2:6380", "redis.cluster"),
        ("rediss+cluster://127.0.0.1", "redis.cluster"),
        ("redis+sentinel://:p@127.0.0.1:26379,127.0.0.2/service?db=3", "redis.sentinel"),
        ("tiered+sqlite:///keys.db?cache=redis://127.0.0.1:6379/0", "tiered"),
        ("dynamodb://idempotency?region=eu-central-1", "dynamodb"),
    ],
)
def test_the_scheme_chooses_and_nothing_is_connected(url: str, name: str) -> None:
    assert type(open_store(url)).__module__.startswith(f"oncekey.stores.{name}")


# ------------------------------------------------------------------------ what is said instead


@pytest.mark.parametrize("url", ["mongodb://host/db", "https://example.org", "file:///keys.db"])
def test_an_unknown_scheme_is_answered_with_the_choice(url: str) -> None:
    with pytest.raises(Misuse) as caught:
        open_store(url)

    said = str(caught.value)
    assert f"no store for {url.partition('//')[0]}//" in said
    for kind in KINDS:
        assert kind.example in said
        assert all(f"{scheme}://" in said for scheme in kind.schemes)


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        (f"postgresql+asyncpg://u:{PASSWORD}@host/db", "postgresql"),
        (f"postgresql+psycopg://u:{PASSWORD}@host/db", "postgresql"),
        (f"MySQL+pymysql://u:{PASSWORD}@host/db", "mysql"),
        ("sqlite+aiosqlite:///keys.db", "sqlite"),
    ],
)
def test_a_url_of_sqlalchemy_s_is_answered_with_what_to_leave_out(url: str, plain: str) -> None:
    with pytest.raises(Misuse, match=rf"leave the driver out, {plain}://…") as caught:
        open_store(url)
    assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"postgresql://u:{PASSWORD}@host/db?nonsense=1", 'parameter: "nonsense"'),
        (f"postgresql://u:{PASSWORD}@host/db?sslmod=require", 'parameter: "sslmod"'),
        (f"postgresql://u:{PASSWORD}@host/db?sslmode=yes", "sslmode is one of disable, allow"),
        ("sqlite:///a%00b.db", "zero byte"),
    ],
)
def test_what_a_driver_cannot_read_is_refused_before_it_connects(url: str, says: str) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        open_store(url)
    assert PASSWORD not in str(caught.value)


def test_a_path_of_sqlite_s_may_begin_with_more_slashes(tmp_path: Path) -> None:
    for url in (f"sqlite:////{tmp_path}/k.db", f"sqlite://////{tmp_path}/k.db"):
        store = open_store(url)
        store.connect().close()
    assert (tmp_path / "k.db").exists()


@pytest.mark.parametrize("path", ["keys.db", "./keys.db", "/var/lib/oncekey/keys.db"])
def test_a_bare_path_is_answered_with_its_url(path: str) -> None:
    with pytest.raises(Misuse, match=f"write sqlite:///{path}"):
        open_store(path)


@pytest.mark.parametrize("given", [None, Path("keys.db"), SplitResult("sqlite", "", "/k", "", "")])
@pytest.mark.parametrize("take", [open_store, as_store])
def test_what_is_neither_text_nor_a_store_is_answered_with_the_choice(
    take: Callable[[Any], Store], given: Any
) -> None:
    with pytest.raises(Misuse, match=r"URL, which is a str, and not by .*sqlite:///keys\.db"):
        take(given)


def test_a_store_is_taken_as_it_is() -> None:
    store = MemoryStore()
    assert as_store(store) is store
    assert isinstance(as_store("memory://"), MemoryStore)


def test_an_empty_url_is_answered_with_the_choice() -> None:
    with pytest.raises(Misuse, match="is empty"):
        open_store("")


@pytest.mark.parametrize(
    "url",
    [
        f"host=127.0.0.1 password={PASSWORD} dbname=x",
        f"host=127.0.0.1 password={PASSWORD}://x",
        f"mongodb://user:{PASSWORD}@host/db",
        f"postgresql://user:{PASSWORD}/x@host/db",
        f"postgresql://user:{PASSWORD}@host:port/db",
        f"postgresql://user:12?{PASSWORD}@host/db",
        f"mysql://user:12/{PASSWORD}@host/db",
        f"redis://:12/{PASSWORD}@host/0",
        f"redis://:12?{PASSWORD}@host/0",
        f"redis://:12#{PASSWORD}@host/0",
        f"rediss://user:p@12/{PASSWORD}@host/0",
        f"tiered+sqlite:///keys.db?cache=redis://:12/{PASSWORD}@host/0",
        f"redis://user:{PASSWORD}@[::1/0",
        f"user:{PASSWORD}@host/db",
        f"redis://user:{PASSWORD}@host/0?timeout_s=soon",
        f"redis+cluster://user:{PASSWORD}@h1:port,h2",
        f"redis+sentinel://user:{PASSWORD}@h1,h2",
        f"tiered+postgresql://user:{PASSWORD}@host/db",
        f"tiered+postgresql://u@host/db?cache=mongodb://:{PASSWORD}@host",
    ],
)
def test_p12_what_cannot_be_opened_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(Misuse) as caught:
        open_store(url)

    assert PASSWORD not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{PASSWORD}@host/db",
        f"mysql://user:{PASSWORD}@host/db",
        f"redis://user:{PASSWORD}@host/0",
        f"redis+cluster://user:{PASSWORD}@h1,h2",
        f"redis+sentinel://user:{PASSWORD}@h1,h2/service?sentinel_password={PASSWORD}",
        f"dynamodb://key:{PASSWORD}@table?region=eu-central-1",
        f"tiered+sqlite:///keys.db?cache=redis://:{PASSWORD}@host/0",
    ],
)
def test_p12_no_part_of_a_store_shows_a_password_or_a_secret(url: str) -> None:
    """Error trackers keep the local names of a traceback as `repr` shows them."""
    store = open_store(url, secrets=SECRET)
    [secret] = read_secrets(SECRET)
    hidden = (PASSWORD, SECRET, *map(repr, (secret.content, secret.recovery, secret.wrapping)))
    parts = list(_parts(store))
    assert secret in parts
    for part in parts:
        assert not any(text in repr(part) for text in hidden), type(part)


def _parts(whole: Any, depth: int = 0) -> Iterator[Any]:
    """A store, and all objects of ours that it holds."""
    yield whole
    slots = getattr(whole, "__slots__", ())
    held = [*getattr(whole, "__dict__", {}).values(), *(getattr(whole, name) for name in slots)]
    for each in held:
        for one in each if isinstance(each, tuple) else [each]:
            if type(one).__module__.startswith("oncekey") and depth < 4:
                yield from _parts(one, depth + 1)


@pytest.mark.parametrize("sign", ["/", "?", "#", "?a=", "?a=b&c=", "/a?b="])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "postgresql", "mysql", "mariadb"])
def test_p12_a_password_with_a_sign_of_urls_is_told_how_to_be_written(
    scheme: str, sign: str
) -> None:
    """What stands before the sign would be a port, and what stands before that a host."""
    with pytest.raises(Misuse, match=rf"{scheme}://u:\*\*\*@h/0: .* %2F for / and so on") as told:
        open_store(f"{scheme}://u:1234{sign}5678@h/0")
    assert "1234" not in str(told.value)
    assert "5678" not in str(told.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///keys@home.db",
        "tiered+sqlite:///keys@home.db?cache=redis://:p@h/0",
        "unix:///run/redis@1.sock?db=0",
        "postgresql://host:5432/keys?user=u@corp&password=p@ss",
        "postgresql://u:p@host/keys?application_name=orders@corp",
        "postgresql://host?user=u@corp&dbname=keys",
        "redis+sentinel://h1,h2/keys?sentinel_password=p@ss",
        "redis://u:1234%2F5678@h/0",
        "redis://u:p@ss@h/0",
    ],
)
def test_an_at_sign_may_stand_where_it_is_no_mistake(url: str) -> None:
    assert open_store(url) is not None


@pytest.mark.parametrize("url", ["sqlite:///keys.db?timeout_s=soon", "redis://h/0?timeout_s=soon"])
def test_an_option_that_cannot_be_read_is_misuse(url: str) -> None:
    with pytest.raises(Misuse, match=r"cannot be read|is a number of seconds"):
        open_store(url)


@pytest.mark.parametrize("given", ["0", "-1", "nan", "inf"])
@pytest.mark.parametrize(
    "option",
    [
        "postgresql://u@h/db?timeout_s",
        "mysql://u@h/db?connect_timeout_s",
        "redis://h/0?timeout_s",
        "redis://h/0?connect_timeout_s",
        "redis+cluster://h?timeout_s",
        "redis+sentinel://h/service?timeout_s",
        "dynamodb://table?timeout_s",
        "dynamodb://table?connect_timeout_s",
        "tiered+sqlite:///keys.db?cache=redis://h&cache_timeout_s",
    ],
)
def test_p11_what_is_no_time_to_wait_is_misuse(option: str, given: str) -> None:
    with pytest.raises(Misuse, match=f"timeout_s={float(given)} is no time to wait"):
        open_store(f"{option}={given}")


@pytest.mark.parametrize("given", ["-1", "nan", "inf"])
def test_p11_the_patience_with_dynamodb_has_an_end(given: str) -> None:
    with pytest.raises(Misuse, match="patience_s"):
        open_store(f"dynamodb://table?region=eu-central-1&patience_s={given}")


@pytest.mark.parametrize("url", ["redis://h/shop", "rediss://h/-1", "redis+cluster://h/shop"])
def test_a_database_of_redis_that_is_no_number_is_not_the_first_one(url: str) -> None:
    with pytest.raises(Misuse, match="not a number"):
        open_store(url)


def test_a_number_of_replicas_is_no_less_than_none() -> None:
    with pytest.raises(Misuse, match="wait_replicas=-1"):
        open_store("redis://h/0?wait_replicas=-1")


@pytest.mark.parametrize("behind", ["shop", "?timeout_s=3"])
def test_nothing_stands_behind_memory(behind: str) -> None:
    """Two of one name would not be one store."""
    with pytest.raises(Misuse, match="memory:// takes nothing behind it"):
        open_store(f"memory://{behind}")


@pytest.mark.parametrize(
    "url", ["rediss://h/0?ssl_cert_reqs=maybe", "redis://h/0?protocol=9", "redis://h/0?nonsense=1"]
)
def test_an_option_that_the_driver_does_not_take_is_misuse(url: str) -> None:
    with pytest.raises(Misuse, match=r"does not take this option|no option"):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "package", "store", "extra"),
    [
        ("postgresql://u:hunter2@h/db", "psycopg", "postgres", "postgres"),
        ("postgresql://u:hunter2@h/db", "asyncpg", "postgres", "postgres"),
        ("redis://u:hunter2@h/0", "redis", "redis", "redis"),
        ("redis://u:hunter2@h/0", "hiredis", "redis", "redis"),
        ("dynamodb://u:hunter2@table", "botocore", "dynamodb", "dynamodb"),
        ("dynamodb://u:hunter2@table", "aiobotocore", "dynamodb", "dynamodb"),
    ],
)
def test_a_missing_driver_is_answered_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, store: str, extra: str
) -> None:
    hide(monkeypatch, package, store=store)

    with pytest.raises(Misuse) as caught:
        open_store(url)

    assert package in str(caught.value)
    assert f"pip install 'oncekey[{extra}]'" in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_a_mistake_of_ours_is_not_called_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "oncekey.stores.redis.store", None)

    with pytest.raises(ModuleNotFoundError, match=r"oncekey\.stores\.redis"):
        open_store("redis://127.0.0.1/0")


# ------------------------------------------------------------------------ passwords


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///keys.db", "sqlite:///keys.db"),
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
        ("postgresql://user:hunter2@host/db", "postgresql://user:***@host/db"),
        ("redis://:hunter2@host:6379/0", "redis://:***@host:6379/0"),
        ("postgresql://user:hun@ter2@host/db", "postgresql://user:***@host/db"),
        ("postgresql://user:hun/ter2#?@host/db", "postgresql://user:***@host/db"),
        (
            "postgresql://host/db?user=u&password=hunter2",
            "postgresql://host/db?user=u&password=***",
        ),
        (
            "postgresql://host/db?sslpassword=hunter2&sslmode=require",
            "postgresql://host/db?sslpassword=***&sslmode=require",
        ),
        ("host=h password='hunter2 and more' user=u", "host=h password=*** user=u"),
    ],
)
def test_p12_redact(url: str, shown: str) -> None:
    assert redact(url) == shown


@given(
    scheme=st.sampled_from([scheme for kind in KINDS for scheme in kind.schemes]),
    user=st.text("abcXYZ0189_.-", max_size=8),
    noise=st.text(max_size=12),
)
def test_p12_no_password_survives_whatever_it_holds(scheme: str, user: str, noise: str) -> None:
    secret = f"{noise}s3cr3t{noise}"

    assert redact(f"{scheme}://{user}:{secret}@host:1/db") == f"{scheme}://{user}:***@host:1/db"


def test_p12_a_password_is_taken_out_where_it_is_quoted_and_not_where_letters_happen_to_be_so() -> (
    None
):
    said = 'no "p" at port 1, p:p, u=p'
    assert scrub("postgresql://u:p@one/keys", said) == 'no "***" at port 1, ***:***, u=***'


def test_what_was_applied_is_named_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    assert oncekey.migrate(url)
    assert oncekey.migrate(oncekey.open_store(url)) == []


def test_a_store_that_is_not_there() -> None:
    with pytest.raises(oncekey.StoreUnavailable):
        oncekey.migrate("postgresql://nobody@127.0.0.1:1/none")


# ------------------------------------------------------------------- names of the same records

SECRETS = ["a secret of more than thirty-two letters for tests"]

SAME = [
    ("postgresql://u:p@host/db", "postgres://u:p@HOST:5432/db"),
    ("postgresql://u:p@host/db", "postgresql://v:q@host/db?application_name=x&timeout_s=1"),
    ("postgresql://u:p@host/db?timeout_s=1&pgbouncer=true", "postgresql://u:p@host/db"),
    ("postgresql://u:p@127.0.0.1/db", "postgresql://u:p@localhost/db"),
    ("postgresql://u:p@[::1]:5432/db", "postgresql://u:p@localhost/db"),
    ("postgresql://u:p@/db?host=/run&port=5433", "postgresql://u:p@/db?port=5433&host=/run"),
    ("postgresql://u:p@a:1,b:2/db", "postgresql://u:p@b:2,a:1/db"),
    ("postgresql://u:p@host", "postgresql://u:p@host/u"),
    ("mysql://u:p@host/db", "mariadb://u:p@HOST:3306/db?timeout_s=1"),
    ("mysql://u:p@localhost/db", "mysql://u:p@127.0.0.1/db"),
    ("redis://host", "redis://HOST:6379/0"),
    ("redis://host/0?prefix=oncekey&timeout_s=2", "valkey://u:p@host"),
    ("redis://localhost", "redis://127.0.0.1:6379"),
    ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
    ("dynamodb://table?region=r&timeout_s=1", "dynamodb://a:b@table?region=r"),
    ("tiered+postgresql://u:p@host/db?cache=redis://a", "postgresql://u:p@host/db"),
]
OTHERS = [
    ("postgresql://u:p@host/db", "postgresql://u:p@host/other"),
    ("postgresql://u:p@host/db", "postgresql://u:p@host:5433/db"),
    ("postgresql://u:p@host/db", "postgresql://u:p@host/db?options=-csearch_path%3Dshop"),
    ("mysql://u:p@host/db", "mysql://u:p@host/other"),
    ("redis://host/0", "redis://host/1"),
    ("redis://host/0", "redis://host/0?prefix=shop"),
    ("redis+cluster://a:1,b:2", "redis+sentinel://a:1,b:2/main"),
    ("redis+sentinel://a:1/main", "redis+sentinel://a:1/other"),
    ("dynamodb://table?region=r", "dynamodb://table?region=s"),
    ("memory://", "memory://"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_names_of_the_same_records(one: str, other: str) -> None:
    assert location_of(open_store(one)) == location_of(open_store(other))
    assert registry_of(one) is registry_of(other)


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_names_of_other_records(one: str, other: str) -> None:
    first, second = open_store(one), open_store(other)
    assert location_of(first) != location_of(second)


def test_a_file_is_the_same_by_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "keys.db")
    (tmp_path / "here").symlink_to(tmp_path)
    names = ["keys.db", "./keys.db", f"{tmp_path}/keys.db", "here/keys.db", "link.db"]
    kept = registry_of(SqliteStore(tmp_path / "keys.db", synchronous="NORMAL"))
    for name in names:
        assert registry_of(f"sqlite:///{name}") is kept
        assert registry_of(SqliteStore(name)) is kept
    assert registry_of("sqlite:///keys.db?timeout_s=1") is kept
    assert registry_of("sqlite:///other.db") is not kept


def test_what_is_sealed_has_other_ids(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    sealed = location_of(open_store(url, secrets=SECRETS))
    assert sealed == location_of(open_store(url, secrets=SECRETS))
    assert sealed != location_of(open_store(url))


def test_a_store_of_your_own_is_itself() -> None:
    class Mine(MemoryStore):
        name = "postgres"

    mine = Mine()
    assert location_of(mine) == location_of(mine) != location_of(Mine())
