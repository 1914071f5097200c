"""The canonical form of a long JSON text, computed in small steps of Python.

The standard library's decoder and encoder hold the interpreter from the first byte to the last: a
body of one megabyte stops all other threads for a tenth of a second. Here other threads can run
after a few tokens. This takes ten times as long, so `_core.canonical` reads short texts; the form
is the same.

The work is linear in the length of the text times its depth, which is limited.
"""

from __future__ import annotations

import heapq
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NoReturn

from oncekey._core.json_numbers import DIGITS_PLAIN_MAX, TooManyDigitsError

DEPTH_MAX = 900
PIECES_MAX = 4_096
NUMBERS_CHARS_MAX = 67_108_864
"""All numbers together, as written. Version 1 of the fingerprint writes `1e308` as 309 digits; no
text of a megabyte comes to more.
"""
TURN = 256
PAUSE_S = 1e-5
"""After so many values another thread may run. A thread that has to ask waits five milliseconds
each time (`sys.getswitchinterval`), and some servers switch threads ten times for one response.
"""
_SORTED_MAX = 32_768
"""More names are sorted in parts."""

# `*+` does not backtrack: if nothing fits after a megabyte of blanks, each of them would be tried
# as the last one, without a pause.
_VALUE = re.compile(
    r"[ \t\n\r]*+(?:"
    r'("[ !#-\[\]-~]*+")'  # 1: a string that is canonical as it stands
    r"|(-?(?:0|[1-9][0-9]*)((?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?))"  # 2: a number, 3: if not whole
    r"|([\[{])"  # 4
    r'|(")'  # 5: any other string
    r"|(true|false|null)"  # 6
    r"|(NaN|-?Infinity))"  # 7
).match
_NAME = re.compile(r'[ \t\n\r]*+"(?:([ !#-\[\]-~]*+)")?').match
_COLON = re.compile(r"[ \t\n\r]*+:").match
_NEXT = re.compile(r"[ \t\n\r]*+([,\]}])").match
_END = re.compile(r"[ \t\n\r]*+([\]}])").match
_REST = re.compile(r"[ \t\n\r]*+").fullmatch

Number = Callable[[str], str]
"""From the text of a number to its canonical form."""


class Rules:
    """What differs between versions of the canonical form."""

    __slots__ = ("constant", "number", "twice", "whole")

    def __init__(
        self,
        whole: Number,
        number: Number,
        twice: Callable[[str], Exception],
        constant: Callable[[str], NoReturn],
    ) -> None:
        self.whole = whole
        self.number = number
        self.twice = twice
        """Makes the error for a name that is twice in one object."""
        self.constant = constant


class _OpenObject:
    """An object that is being read."""

    __slots__ = ("begin", "members", "name")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        """Where its current member begins in the output."""
        self.name = ""
        self.members: dict[str, str] = {}


class LongJson:
    """Reads one text once."""

    def __init__(self, text: str, rules: Rules) -> None:
        self._text = text
        self._rules = rules
        self._at = 0
        self._written: list[str] = []
        self._folded = 0
        """How many of its first pieces are long: earlier output was joined."""
        self._digits = 0
        """How many characters its numbers came to."""
        self._open: list[_OpenObject | None] = []
        """What is being read, outermost first; None for an array."""
        self.members: dict[str, str] | None = None
        """If the text is an object: the canonical form of each of its members."""

    def canonical(self) -> str:
        """Return the canonical form. Raises `JSONDecodeError`, `RecursionError` or by the rules."""
        for read in itertools.count(1):
            if not read % TURN:
                time.sleep(PAUSE_S)
            if len(self._written) > self._folded + PIECES_MAX:
                self._fold()
            if self._value():
                while self._open:
                    if not self._closes():
                        break
                else:
                    break
        if not _REST(self._text, self._at):
            self._fail()
        return "".join(self._written)

    def _fold(self) -> None:
        """Join the output, except where members begin: pieces take ten times the memory."""
        start = at = self._folded
        pieces = self._written[start:]
        del self._written[start:]
        for each in self._open:
            if each is not None and each.begin > start:
                if each.begin > at:
                    self._written.append("".join(pieces[at - start : each.begin - start]))
                    at = each.begin
                each.begin = len(self._written)
        self._written.append("".join(pieces[at - start :]))
        self._folded = len(self._written)

    def _value(self) -> bool:
        """Read a value. False: it contains others, and the first of them is next."""
        found = _VALUE(self._text, self._at) or self._fail()
        self._at = found.end()
        kind = found.lastindex
        if kind == 2:
            self._written.append(self._number(found[2], bool(found[3])))
        elif kind == 4:
            return self._opens(found[4])
        elif kind == 5:
            text, self._at = scanstring(self._text, self._at, True)
            self._written.append(quoted(text))
        elif kind == 7:
            self._rules.constant(found[7])
        else:
            self._written.append(found[kind or 0])
        return True

    def _number(self, text: str, broken: bool) -> str:
        if not broken and len(text) <= DIGITS_PLAIN_MAX and text != "-0":
            return text
        number = (self._rules.number if broken else self._rules.whole)(text)
        self._digits += len(number)
        if self._digits > NUMBERS_CHARS_MAX:
            raise TooManyDigitsError
        return number

    def _opens(self, bracket: str) -> bool:
        is_object = bracket == "{"
        end = _END(self._text, self._at)
        if end is not None and end[1] == ("}" if is_object else "]"):
            self._at = end.end()
            self._written.append(f"{bracket}{end[1]}")
            if is_object and not self._open:
                self.members = {}
            return True
        if len(self._open) >= DEPTH_MAX:
            raise RecursionError
        if is_object:
            self._open.append(_OpenObject(len(self._written)))
            self._name()
        else:
            self._written.append("[")
            self._open.append(None)
        return False

    def _closes(self) -> bool:
        """After a value: return whether what contains it ends here. Otherwise another follows."""
        found = _NEXT(self._text, self._at) or self._fail()
        self._at, mark, inside = found.end(), found[1], self._open[-1]
        if inside is None:
            if mark == "}":
                self._fail()
            self._written.append(mark)
        else:
            if mark == "]":
                self._fail()
            inside.members[inside.name] = "".join(self._written[inside.begin :])
            del self._written[inside.begin :]
            self._folded = min(self._folded, inside.begin)
            if mark == ",":
                self._name()
            else:
                self._written.append(write_object(inside.members))
        if mark == ",":
            return False
        self._open.pop()
        if inside is not None and not self._open:
            self.members = inside.members
        return True

    def _name(self) -> None:
        """Read the name of the next member, up to its value."""
        found = _NAME(self._text, self._at) or self._fail()
        self._at, name = found.end(), found[1]
        if name is None:
            name, self._at = scanstring(self._text, self._at, True)
        inside = self._open[-1]
        if inside is None or name in inside.members:
            raise self._rules.twice(name)
        inside.name = name
        colon = _COLON(self._text, self._at) or self._fail()
        self._at = colon.end()

    def _fail(self) -> Any:
        raise json.JSONDecodeError("", self._text, self._at)


def write_object(members: dict[str, str]) -> str:
    """Write an object of members that are in canonical form."""
    return f"{{{','.join([f'{quoted(name)}:{members[name]}' for name in _in_order(members)])}}}"


def _in_order(members: dict[str, str]) -> Iterable[str]:
    if len(members) <= _SORTED_MAX:
        return sorted(members)
    names = list(members)
    parts = range(0, len(names), _SORTED_MAX)
    return heapq.merge(*(sorted(names[at : at + _SORTED_MAX]) for at in parts))
