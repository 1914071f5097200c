"""Where a SQLite file may be, how it may be set, and what is told about it."""

import contextlib
from pathlib import Path

import pytest

from oncekey._core.op import run
from oncekey.errors import StoreUnfit
from oncekey.stores.checks import Examination, Level
from oncekey.stores.sqlite import checks
from oncekey.stores.sqlite.checks import Surroundings, file_system
from oncekey.stores.sqlite.store import SqliteStore, open_url

AROUND = Surroundings("/data/keys.db", 4096, 0, 0o600, True, 10**12, 10**11)


def start(store: SqliteStore) -> None:
    with contextlib.closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)


def examine(store: SqliteStore) -> Examination:
    with contextlib.closing(store.connect()) as connection:
        return run(store.examine(), connection.ask)


def test_p4_a_file_that_is_not_synced_has_to_be_accepted_by_name(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keys.db?synchronous=OFF"
    with pytest.raises(StoreUnfit, match=r"synchronous = OFF: .* adding allow=unsafe-durability"):
        start(open_url(url))
    accepted = open_url(f"{url}&allow=unsafe-durability")
    start(accepted)
    assert not accepted.durability.power_loss
    with contextlib.closing(accepted.connect()) as connection:
        assert connection.ask(lambda file: file.read(_synchronous)) == 0


def _synchronous(execute: object) -> int:
    [mode] = execute("PRAGMA synchronous").fetchone()  # type: ignore[operator]
    return int(mode)


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the system says is a share."""
    share = tmp_path / "a share"
    share.mkdir()
    told = tmp_path / "mountinfo"
    where = str(share).replace(" ", "\\040")
    told.write_text(
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        f"90 27 0:50 / {where} rw,relatime shared:1 - nfs4 files:/export rw,vers=4.2\n"
        f"91 27 0:51 / {where}-local rw,relatime - xfs /dev/vdb rw\n"
    )
    monkeypatch.setattr(checks, "MOUNTS", told)
    return share


def test_a_network_share_has_to_be_accepted_by_name(mounted: Path) -> None:
    url = f"sqlite:///{mounted}/keys.db".replace(" ", "%20")
    with pytest.raises(StoreUnfit, match=r"nfs4: .* adding allow=network-file-system"):
        start(open_url(url))
    start(open_url(f"{url}?allow=network-file-system"))


def test_the_file_system_is_that_of_the_nearest_mount(mounted: Path) -> None:
    (mounted / "deep" / "er").mkdir(parents=True)
    assert file_system(f"{mounted}/deep/er/keys.db") == "nfs4"
    assert file_system(f"{mounted}-local/keys.db") == "xfs"
    assert file_system(f"{mounted.parent}/keys.db") == "ext4"


def test_a_link_does_not_hide_a_network_share(tmp_path: Path, mounted: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(mounted / "keys.db")
    assert file_system(str(link)) == "nfs4"


def test_what_this_machine_says_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert file_system(f"{tmp_path}/keys.db") is not None
    monkeypatch.setattr(checks, "MOUNTS", tmp_path / "none")
    assert file_system(f"{tmp_path}/keys.db") is None
    start(SqliteStore(tmp_path / "keys.db"))


def test_a_look_changes_nothing(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "keys.db")
    looked = examine(store)
    assert not looked.readable
    assert "the first use makes it" in looked.findings[3].seen
    start(store)
    looked = examine(store)
    assert looked.readable
    assert {found.level for found in looked.findings} <= {Level.FINE, Level.ADVICE}
    assert looked.size is not None
    assert looked.size.records == 0


@pytest.mark.parametrize(
    ("around", "what", "do"),
    [
        (
            Surroundings("/d/k.db", 1, 0, 0o644, True, 10**12, 10**11),
            "privileges",
            "chmod 600 /d/k.db",
        ),
        (Surroundings("/d/k.db", 1, 10**9, 0o600, True, 10**12, 10**11), "write-ahead log", "lsof"),
        (Surroundings("/d/k.db", 1, 0, 0o600, True, 10**10, 10**8), "disk", "Free some space"),
    ],
)
def test_what_is_around_the_file_is_told(around: Surroundings, what: str, do: str) -> None:
    [told] = [found for found in around.findings() if found.level is Level.ADVICE]
    assert told.what == what
    assert do in told.do
    assert all(found.level is Level.FINE for found in AROUND.findings())


def test_a_folder_that_cannot_be_written_to_is_unsafe() -> None:
    around = Surroundings("/d/k.db", 1, 0, 0o600, False, 10**12, 10**11)
    assert next(around.findings()).level is Level.UNSAFE
