"""Make text of unknown origin safe to show."""

from __future__ import annotations


def printable(text: str, chars_max: int = 200) -> str:
    r"""Put a text on one line, with escapes for control characters, cut at `chars_max`.

    Tenants and operations come from requests. Shown as they are, they could forge log lines or send
    commands to a terminal.

    >>> printable("POST /orders\r\nERROR all is lost")
    'POST /orders\\r\\nERROR all is lost'
    >>> printable("POST /orders", chars_max=6)
    'POST …'
    """
    if len(text) > chars_max:
        text = text[: chars_max - 1] + "…"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
