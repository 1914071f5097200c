"""Settings: all that can be chosen about a payments server. Nothing is read from elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from payments.access.rate_limits import Rates

API_VERSION = "2026-10-28.endive"
"""The version of Stripe's API whose shapes are spoken here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one payments server runs. The defaults are the embedded ones: one process, one file."""

    data: Path = Path("payments-data")
    """The folder of the embedded database and of whatever else is kept in files."""
    database_url: str = ""
    """`sqlite:///…` or `postgresql://…`; empty: a SQLite file in `data`."""
    redis_url: str | None = None
    """Where rate limits are counted when several processes share them."""
    network_url: str = "http://127.0.0.1:8001"
    """Where the card network listens."""

    idempotent: bool = True
    """False switches oncekey off. Only for measuring what it costs."""
    recover: bool = True
    """Whether this process finishes what others abandoned."""
    lease_s: float = 30.0
    """How long a charge may go unrenewed before a retry or the recoverer continues it."""
    wait_s: float = 10.0
    """How long a retry waits for the answer to its first request, before it is told 409."""
    patience_s: float = 120.0
    """How long what waits for the card network is left to its client, before it is asked for."""
    body_bytes_max: int = 1_048_576
    rates: Rates = field(default_factory=Rates)
    """How much of the API each caller may use."""
    local_key: bool | None = None
    """Whether requests from this machine may use `sk_test_local`; None: if the database is the
    embedded one."""
    deliver: bool = True
    """Whether this process sends webhooks, and removes events that are old."""
    events_kept_s: float = 30 * 86_400.0
    """How long events can be retrieved, with their deliveries and the log of every attempt."""
    webhook_networks: tuple[str, ...] = ()
    """Networks that webhooks may be sent to although they are not public: `127.0.0.0/8`."""
    demo: bool = True
    """Whether the checkout page is there to be tried out, where the local key works."""
    threads_max: int = 40
    """Requests that are worked on at once; each may hold one database connection."""

    @property
    def takes_local_key(self) -> bool:
        """Whether `sk_test_local` works here."""
        return not self.database_url if self.local_key is None else self.local_key

    @property
    def shows_demo(self) -> bool:
        """Whether the checkout page works here, and is told what happens."""
        return self.demo and self.takes_local_key

    @property
    def database(self) -> str:
        """The URL of the one database that holds the rows and oncekey's records."""
        return self.database_url or file_url(self.data / "payments.db")

    @property
    def keeps_files(self) -> bool:
        """Whether anything of it lies in `data`."""
        return not self.database_url or self.shows_demo


def make_folder(data: Path) -> None:
    """Make the folder of a server's files, for its owner alone, if it is not there. `ValueError` if
    it cannot be.
    """
    try:
        data.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{data} cannot be the folder of its files ({error.strerror}): choose another by --data"
        ) from None


def file_url(path: Path) -> str:
    """The URL of a SQLite file, whatever the names of its folders are."""
    return f"sqlite:///{quote(str(path.absolute()))}"
