"""How commands for a Redis server are encoded."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from oncekey.stores.redis import connection
from oncekey.stores.redis.connection import encode_command

COMMAND: tuple[Any, ...] = ("EVALSHA", "ä", b"\x00\xff", 0, -7, 2**63, 0.1, 1e308, 86_400.0, "")


def test_a_command_is_packed_as_hiredis_packs_it() -> None:
    packed: Any = hiredis.pack_command
    assert encode_command(COMMAND) == packed(COMMAND)


def test_hiredis_writes_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def pack(command: tuple[Any, ...]) -> bytes:
        given.extend(command)
        return b""

    monkeypatch.setattr(connection, "pack_command", pack)
    encode_command(COMMAND)
    assert {type(part) for part in given} == {str, bytes}, "it is no place for a signal to raise"
