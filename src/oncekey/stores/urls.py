"""A store from an address: `open_store("sqlite:///keys.db")`.

Only the module of the chosen store is imported, so that only its driver is needed.
"""

from __future__ import annotations

import enum
import importlib
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import SplitResult, unquote, urlsplit

from oncekey._core.op import run
from oncekey.errors import Misuse
from oncekey.stores.base import Store
from oncekey.stores.memory import MemoryStore


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A kind of store: the schemes of its URLs, and what it needs."""

    schemes: tuple[str, ...]
    example: str
    module: str | None = None
    """Its module, with `open_url(url) -> Store`."""
    drivers: tuple[str, ...] = ()
    extra: str | None = None
    """The extra that installs the drivers: `oncekey[extra]`."""


KINDS = (
    StoreKind(("memory",), "memory://"),
    StoreKind(("sqlite",), "sqlite:///keys.db", "oncekey.stores.sqlite.store"),
    StoreKind(
        ("postgresql", "postgres"),
        "postgresql://user:password@host/database",
        "oncekey.stores.postgres.store",
        drivers=("asyncpg", "psycopg"),
        extra="postgres",
    ),
    StoreKind(
        ("mysql", "mariadb"),
        "mysql://user:password@host/database",
        "oncekey.stores.mysql.store",
        drivers=("asyncmy", "pymysql"),
        extra="mysql",
    ),
    StoreKind(
        (
            *("redis", "rediss", "unix", "redis+unix", "valkey", "valkeys"),
            *("redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"),
        ),
        "redis://user:password@host:6379/0",
        "oncekey.stores.redis.store",
        drivers=("redis", "hiredis"),
        extra="redis",
    ),
    StoreKind(
        ("dynamodb",),
        "dynamodb://table?region=eu-central-1",
        "oncekey.stores.dynamodb.store",
        drivers=("aiobotocore", "botocore"),
        extra="dynamodb",
    ),
    StoreKind(
        tuple(
            f"tiered+{truth}"
            for truth in ("postgresql", "postgres", "mysql", "mariadb", "dynamodb", "sqlite")
        ),
        "tiered+postgresql://user:password@host/database?cache=redis://host:6379/0",
        "oncekey.stores.tiered.store",
        drivers=("redis", "hiredis"),
        extra="redis",
    ),
)
_BY_SCHEME = {scheme: kind for kind in KINDS for scheme in kind.schemes}
_ALIASES = {"redis+unix": "unix"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Unsealed(enum.Enum):
    """No encryption was asked for. `None` does not mean that: a missing environment variable gives
    None, and records that should be encrypted would be stored in the clear.
    """

    UNSEALED = "unsealed"


def open_store(url: str, *, secrets: str | Sequence[str] | Unsealed = Unsealed.UNSEALED) -> Store:
    """Return the store of a URL, without connecting. Raises `Misuse` for any other text.

    `secrets` encrypt everything in it: a list of texts, one text with commas between them, or
    `@FILE` with one in each line. The first encrypts, all of them decrypt (docs/sealed.md). None or
    an empty text is a misuse: leave `secrets` out to store records unencrypted.
    """
    store = _open_plain(url)
    return store if isinstance(secrets, Unsealed) else _seal(store, secrets)


def as_store(given: str | Store) -> Store:
    """Return a store, or open the one of a URL. Raises `Misuse` for anything else."""
    if isinstance(given, str):
        return open_store(given)
    if isinstance(given, type) or not hasattr(given, "perform"):
        raise Misuse(_no_text(given))
    return given


def migrate(store: str | Store) -> list[str]:
    """Create or update a store's schema; return the names of applied migrations, none if it is up
    to date. Safe to run twice, and beside running code. Raises `StoreUnavailable`.
    """
    opened = as_store(store)
    with closing(opened.connect()) as connection:
        return run(opened.migrate(), connection.ask)


def _seal(store: Store, secrets: str | Sequence[str]) -> Store:
    try:
        sealed = importlib.import_module("oncekey.stores.sealed.store")
    except ImportError as error:
        if error.name is None or error.name.partition(".")[0] != "cryptography":
            raise
        raise Misuse(f"secrets=…: {error}: pip install 'oncekey[sealed]'") from error
    sealed_store: Store = sealed.SealedStore(store, secrets)
    return sealed_store


def _open_plain(url: str) -> Store:
    if not isinstance(url, str):
        raise Misuse(_no_text(url))
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise Misuse(_no_scheme(url))
    name = scheme[1].lower()
    kind = _BY_SCHEME.get(name)
    plain = name.partition("+")[0]
    if kind is None and plain in _BY_SCHEME:
        raise Misuse(f"{redact(url)}: leave the driver out, {plain}://…; oncekey brings its own")
    if kind is None:
        raise Misuse(f"{redact(url)}: there is no store for {scheme[0]}. {_choice()}")
    must_be_readable(url, kind.example)
    if kind.module is None:
        if url[scheme.end() :]:
            raise Misuse("memory:// takes nothing behind it: every store that is opened so is new")
        return MemoryStore()
    return _open(f"{_ALIASES.get(name, name)}://{url[scheme.end() :]}", kind, kind.module)


def must_be_readable(url: str, example: str) -> None:
    """Raise `Misuse` unless the host and port can be told from the password."""
    try:
        parts = urlsplit(url)
        if "," not in parts.netloc:  # PostgreSQL takes several hosts, each with its port
            _ = parts.port  # the standard library reads it only when asked
        if parts.netloc and "@" in example and not parts.scheme.endswith("unix"):
            _must_end_its_password(parts)
    except ValueError:  # its text may contain part of the password
        raise Misuse(
            f"{redact(url)}: its host or port cannot be read. It should look like {example}; "
            "write special characters in the password as %40 for @, %2F for / and so on"
        ) from None


_OPTION = re.compile(r"[^=]*=")
_OPTION_WITH_AT = re.compile(r"\w*(?:user|username|password|cache)=")
"""Options whose value may contain an `@`; anything else may be part of a password."""


def _must_end_its_password(parts: SplitResult) -> None:
    """Raise `ValueError` if the password contains a `/`, `?` or `#`: every parser ends it there,
    and takes the part before for a port and the user for a host. An `@` then comes too late.
    """
    option = _OPTION if "@" in parts.netloc else _OPTION_WITH_AT
    late = [pair for pair in parts.query.split("&") if not option.match(pair)]
    if any("@" in text for text in (parts.path, parts.fragment, *late)):
        raise ValueError("an @ behind the host")


def _open(url: str, kind: StoreKind, module: str) -> Store:
    try:
        store: Store = importlib.import_module(module).open_url(url)
    except ImportError as error:
        # Without a name it comes from a driver that lacks a library; with another name than a
        # driver's it is our mistake.
        name = error.name and error.name.partition(".")[0]
        if not kind.drivers or name not in (None, *kind.drivers):
            raise
        reason = str(error).partition("\n")[0]
        raise Misuse(
            f"{redact(url)}: its driver cannot be imported ({reason}): "
            f"pip install 'oncekey[{kind.extra}]'"
        ) from error
    except ValueError:  # its text may contain part of the password
        raise Misuse(
            f"{redact(url)}: one of its values cannot be read; it should look like {kind.example}"
        ) from None
    return store


def _no_text(given: object) -> str:
    what = (
        "None" if given is None else f"a {type(given).__name__}"
    )  # the value itself may contain a password
    return f"a store is named by its URL, which is a str, and not by {what}. {_choice()}"


def _no_scheme(url: str) -> str:
    if not url:
        return f"the store's URL is empty. {_choice()}"
    if re.search(r"\w\s*=", url):
        return f"{redact(url)!r} is not a URL. {_choice()}"
    return (
        f"{redact(url)!r} is not a URL. If it is a path to a SQLite file, write "
        f"sqlite:///{redact(url)}. {_choice()}"
    )


def _choice() -> str:
    examples = [f"{', '.join(f'{s}://' for s in kind.schemes)} ({kind.example})" for kind in KINDS]
    return f"Stores, each with an example: {'; '.join(examples)}"


_LOCAL = frozenset({"localhost", "127.0.0.1", "::1", ""})


def canonical_host(host: str) -> str:
    """Normalise a host name to compare it: names of this machine are equal."""
    return "localhost" if host.lower() in _LOCAL else host.lower().rstrip(".")


# ------------------------------------------------------------------------ passwords

_SECRET_FIELD = re.compile(
    r"(?i)\b(\w*(?:password|passwd|secret))\s*=\s*(?:'(?:[^'\\]|\\.)*'|[^&\s]*)"
)


def redact(url: str) -> str:
    """Return the URL without its password, to show it.

    A password may contain unescaped `@`, `/` and `#`, and parsers disagree on where it ends. So
    everything from the first colon to the last `@` is left out: better to hide a host than to show
    a password.
    """
    shown = _SECRET_FIELD.sub(r"\1=***", url)
    scheme, separator, rest = shown.partition("://")
    if not separator:
        scheme, rest = "", shown
    user, at, place = rest.rpartition("@")
    if at and ":" in user:
        rest = f"{user.partition(':')[0]}:***@{place}"
    return f"{scheme}{separator}{rest}"


def scrub(url: str, text: str) -> str:
    """Remove the URL's password from a text, if a driver quoted it.

    Within a word it is there by chance, and removing it would reveal it.
    """
    raw = urlsplit(url).password or ""
    for secret in {raw, unquote(raw)} - {""}:
        text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", text)
    return text
