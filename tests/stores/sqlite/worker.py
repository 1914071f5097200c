"""What other processes do to an SQLite file: `python -m tests.stores.sqlite.worker <what>`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import sys
from collections.abc import Iterator

from oncekey._core.record import Claim, Record
from oncekey._core.verbs import Find, Found, Insert, Inserted
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import Gatherer
from oncekey.stores.sqlite.store import SqliteStore

HOUR_S = 3600.0


def claim(name: str, *, tenant: str = "acct_1") -> Claim:
    """An attempt at the record of this name, with a token of this process's own."""
    return Claim(
        id=hashlib.sha256(name.encode()).digest(),
        token=os.urandom(16),
        tenant=tenant,
        operation="POST /orders",
        key=name,
        fingerprint=b"\x01" * 32,
        fingerprint_version=1,
        lease_s=HOUR_S,
        retention_s=HOUR_S,
    )


def say(*words: object) -> None:
    """One line, at once: what was said is what was acknowledged."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def insert_all(path: str, count: str, who: str) -> None:
    """Insert the same records as everybody else, as soon as told to; say which were won."""
    gatherer = Gatherer(SqliteStore(path))
    say("ready")
    sys.stdin.readline()
    for number in range(int(count)):
        outcome = gatherer.ask(Insert(claim(f"order-{number}")))
        if isinstance(outcome, Inserted):
            say(number)
    gatherer.close()


def insert_for_ever(path: str, who: str) -> None:
    """Insert records of one's own and say each when it is acknowledged, until killed."""
    gatherer = Gatherer(SqliteStore(path))
    number = 0
    while True:
        name = f"{who}-{number}"
        assert isinstance(gatherer.ask(Insert(claim(name))), Inserted)
        say(name)
        number += 1


def insert_over_forks(path: str, count: str) -> None:
    """Use the file, fork with it open, and use it on both sides at once."""
    gatherer = Gatherer(SqliteStore(path))
    gatherer.ask(Insert(claim("before")))
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            for number in range(int(count)):
                gatherer.ask(Insert(claim(f"child-{child}-{number}")))
            os._exit(0)
        children.append(pid)
    for number in range(int(count)):
        gatherer.ask(Insert(claim(f"parent-{number}")))
    gatherer.close()  # if a child had no locks of its own, this would take its WAL away
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]
    gatherer.ask(Insert(claim("after")))
    say("done")


def insert_without_room(path: str, name: str) -> None:
    """Let every write past some size of the WAL fail, for many sizes; nothing may be lost.

    Each failure hits another point of a commit. Afterwards there is room again, and the insert is
    repeated with the same token, as the engine would.
    """
    gatherer = Gatherer(SqliteStore(path))
    gatherer.ask(Insert(claim("first")))
    acknowledged, failures, sent = [], 0, set()
    for round_ in range(60):
        room = os.stat(f"{path}-wal").st_size + round_ * 500 % 16_000
        attempt = claim(f"{name}-{round_}")
        with _no_file_longer_than(room):
            try:
                outcome = gatherer.ask(Insert(attempt))
            except StoreUnavailable as error:
                failures += 1
                sent.add(error.sent)
                outcome = None
        if outcome is None:
            outcome = gatherer.ask(Insert(attempt))
        mine = isinstance(outcome, Found) and outcome.record.token == attempt.token
        assert mine or isinstance(outcome, Inserted), outcome
        acknowledged.append(attempt)
        for each in acknowledged:
            found = gatherer.ask(Find(each.id))
            assert isinstance(found, Record)
            assert found.token == each.token
    gatherer.close()
    say(failures, sorted(sent))


@contextlib.contextmanager
def _no_file_longer_than(size: int) -> Iterator[None]:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
