"""How long keys may be used, and who says so."""

from __future__ import annotations

from typing import Any

import pytest

from oncekey.client._intent import as_assumption, is_news, must_be_valid, usable_retention
from oncekey.client._retention import RETENTION_S
from oncekey.errors import Misuse


@pytest.mark.parametrize(
    ("known_s", "configured_s", "recorded_s", "counts"),
    [
        (600.0, 50.0, 40.0, 600.0),  # the server's own word
        (as_assumption(600.0), 7_000.0, 40.0, 7_000.0),  # the application's
        (as_assumption(600.0), None, 7_000.0, 600.0),  # a setting that was taken back long ago
        (as_assumption(7_000.0), None, 600.0, 600.0),  # one that was made after that was assumed
        (None, None, 600.0, 600.0),
        (as_assumption(600.0), None, None, 600.0),
        (None, None, None, RETENTION_S),
    ],
)
def test_whose_word_counts(
    known_s: float | None, configured_s: float | None, recorded_s: float | None, counts: float
) -> None:
    assert usable_retention(known_s, configured_s, recorded_s) == counts


@pytest.mark.parametrize(
    ("known_s", "server_s", "is_new"),
    [
        *(
            (None, 600.0, True),
            (as_assumption(600.0), 600.0, True),
            (as_assumption(600.0), 7_000.0, True),
        ),
        *((600.0, 599.0, False), (600.0, 7_000.0, False), (600.0, 300.0, True)),
    ],
)
def test_what_is_news_of_a_server(known_s: float | None, server_s: float, is_new: bool) -> None:
    assert is_news(known_s, server_s) is is_new


@pytest.mark.parametrize(
    ("name", "note"),
    [("pay", {"order": 17}), ("pay", b"17"), ("pay", None), (b"pay", ""), (17, "")],
)
def test_what_is_no_text_is_misuse_and_not_a_broken_journal(name: Any, note: Any) -> None:
    with pytest.raises(Misuse, match=r"must be texts, not \w+ and \w+: .*json\.dumps"):
        must_be_valid(name, note)
