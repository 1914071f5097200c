"""Warn once per process, by a logger that can be silenced alone.

logging.getLogger("oncekey.recovery").setLevel(logging.ERROR)
"""

from __future__ import annotations

import logging

_given: set[tuple[str, str]] = set()


def warn(topic: str, text: str, *, subject: str = "") -> None:
    """Warn with the logger `oncekey.TOPIC`, once in this process and those forked from it.

    `subject` tells warnings apart if the text alone does not.
    """
    about = (topic, subject or text)
    if about in _given:
        return
    _given.add(about)
    name = f"oncekey.{topic}"
    logging.getLogger(name).warning(
        "%s (logging.getLogger(%r).setLevel('ERROR') silences this)", text, name
    )


def listed(names: list[str], most: int = 5) -> str:
    """Join names in a text that stays short."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def forget() -> None:
    """Allow every warning again: for tests."""
    _given.clear()
