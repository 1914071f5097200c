"""Settings: everything you can configure about a payments server. Nothing is read elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from payments.access.rate_limits import Rates

API_VERSION = "2026-10-28.endive"
"""The version of Stripe's API that this one follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one payments server runs. The defaults are the embedded ones: one process, one file."""

    data: Path = Path("payments-data")
    """The folder of the embedded database and all other files."""
    database_url: str = ""
    """`sqlite:///…` or `postgresql://…`; empty: a SQLite file in `data`."""
    redis_url: str | None = None
    """Where rate limits are counted when several processes share them."""
    network_url: str = "http://127.0.0.1:8001"
    """Where the card network listens."""

    idempotent: bool = True
    """False switches oncekey off, only to measure what it costs."""
    recover: bool = True
    """Whether this process finishes abandoned operations."""
    lease_s: float = 30.0
    """How long a charge may stay unrenewed before a retry or the recoverer resumes it."""
    wait_s: float = 10.0
    """How long a retry waits for the response to the first request before it gets 409."""
    patience_s: float = 120.0
    """How long a client may retry what waits for the card network before the server finishes it."""
    body_bytes_max: int = 1_048_576
    rates: Rates = field(default_factory=Rates)
    """How much of the API each caller may use."""
    local_key: bool | None = None
    """Whether requests from this machine may use `sk_test_local`; None: only with the embedded
    database."""
    deliver: bool = True
    """Whether this process sends webhooks and deletes old events."""
    events_kept_s: float = 30 * 86_400.0
    """How long events, their deliveries and the log of attempts are stored."""
    webhook_networks: tuple[str, ...] = ()
    """Private networks that webhooks may be sent to, such as `127.0.0.0/8`."""
    demo: bool = True
    """Whether to serve the checkout page, where the local key works."""
    threads_max: int = 40
    """Requests handled at once; each may hold one database connection."""

    @property
    def takes_local_key(self) -> bool:
        """Whether `sk_test_local` works on this server."""
        return not self.database_url if self.local_key is None else self.local_key

    @property
    def shows_demo(self) -> bool:
        """Whether this server has the checkout page and traces requests for it."""
        return self.demo and self.takes_local_key

    @property
    def database(self) -> str:
        """The URL of the database that holds the rows and oncekey's records."""
        return self.database_url or file_url(self.data / "payments.db")

    @property
    def keeps_files(self) -> bool:
        """Whether the server writes files to `data`."""
        return not self.database_url or self.shows_demo


def make_folder(data: Path) -> None:
    """Create the folder of a server's files, readable by its owner only, if it does not exist.

    Raises ValueError if that fails.
    """
    try:
        data.mkdir(0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot create the folder {data} ({error.strerror}): choose another with --data"
        ) from None


def file_url(path: Path) -> str:
    """Return the URL of a SQLite file, whatever characters its path has."""
    return f"sqlite:///{quote(str(path.absolute()))}"
