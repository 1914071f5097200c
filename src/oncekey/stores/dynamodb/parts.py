"""Items stored beside a record: steps, requests and large bodies. Pure.

An item can hold 400 KB, so larger content is split into pieces.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping

from oncekey._core.framing import as_bytes
from oncekey._core.record import Claim, Step
from oncekey.errors import CorruptRecord
from oncekey.stores.dynamodb.statements import Item, Update, b, decode_text, key, n

STEP, REQUEST, BODY = b"s", b"q", b"b"
PIECE_BYTES = 350_000
REQUEST_BYTES_MAX = STEP_BYTES_MAX = 3_500_000
"""They are written in one transaction with their record, which can hold 4 MB."""
PARTS_PER_TRANSACTION_MAX = REQUEST_BYTES_MAX // PIECE_BYTES
"""How many parts of any size one transaction can change or remove with their record: removed items
may count by their size too.
"""
_PIECE_TTL_SLACK_S = 86_400

_GENERATION = struct.Struct("!Q")
_NUMBER = struct.Struct("!H")
_CONTENT = struct.Struct("!?H")  # whether there is a result; the length of the digest


# --------------------------------------------------------------------------------------- pieces


def body_digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def pieces(data: bytes) -> list[bytes]:
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data) or 1, PIECE_BYTES)]


def piece_keys(kind: bytes, of: bytes, count: int) -> list[bytes]:
    """Return the sort keys of so many pieces."""
    return [kind + of + _NUMBER.pack(number) for number in range(count)]


def request_items(claim: Claim) -> list[Item]:
    """Return the pieces of a claim's request."""
    found = pieces(claim.request or b"")
    parts = piece_keys(REQUEST, claim.token, len(found))
    return [
        {**key(claim.id, part), "data": b(data)} for part, data in zip(parts, found, strict=True)
    ]


def body_items(record_id: bytes, body: bytes, ttl_s: int) -> list[Item]:
    """Return the pieces of a body. Their time to live removes them, even if they outlive their
    record or never have one.
    """
    found = pieces(body)
    parts = piece_keys(BODY, body_digest(body), len(found))
    gone = n(ttl_s + _PIECE_TTL_SLACK_S)
    return [
        {**key(record_id, part), "data": b(data), "ttl": gone}
        for part, data in zip(parts, found, strict=True)
    ]


# ---------------------------------------------------------------------------------------- steps


def step_key(generation: int, name: str) -> bytes:
    return STEP + _GENERATION.pack(generation) + hashlib.sha256(as_bytes(name)).digest()


def first_step_key(generation: int) -> bytes:
    """Return the sort key that only steps of earlier generations precede."""
    return STEP + _GENERATION.pack(generation)


def step_update(step: Step, fence: int, number: int) -> Update:
    """Write a step in its place: steps are ordered by attempt, then by arrival."""
    update = Update()
    order = {"fence": n(fence), "number": n(number)}
    for attribute, found in order.items():
        first = update.bind(attribute, found)
        update.set(**{attribute: f"if_not_exists({update.name(attribute)}, {first})"})
    content, *more = pieces(step_content(step))
    update.set(name=b(as_bytes(step.name)), content=b(content))
    update.set(pieces=n(len(more))) if more else update.remove("pieces")
    if step.result is None:  # a late start mark must not replace a result
        update.only_if(f"attribute_not_exists({update.name('done')})")
    else:
        update.set(done=n(1))
    return update


def step_pieces(record_id: bytes, part: bytes, step: Step) -> list[Item]:
    """Return the part of a step that exceeds its item. Only a finished step is that large."""
    _, *more = pieces(step_content(step))
    names = piece_keys(part, b"", len(more))
    return [
        {**key(record_id, name), "data": b(data), "done": n(1)}
        for name, data in zip(names, more, strict=True)
    ]


def is_piece(item: Item) -> bool:
    return "data" in item


def step_content(step: Step) -> bytes:
    head = _CONTENT.pack(step.result is not None, len(step.digest))
    return head + step.digest + (step.result or b"")


def is_of_generation(generation: int, item: Item) -> bool:
    """Return whether a step belongs to this generation."""
    part: bytes = item["part"]["B"]
    return part[1 : 1 + _GENERATION.size] == _GENERATION.pack(generation)


def steps_of(generation: int, items: Iterable[Item]) -> list[Step]:
    """Return the steps of a generation, in the order in which they were first appended."""
    ours = [item for item in items if is_of_generation(generation, item)]
    data = {item["part"]["B"]: item["data"]["B"] for item in ours if is_piece(item)}
    steps = [item for item in ours if not is_piece(item)]
    steps.sort(key=lambda item: (int(item["fence"]["N"]), int(item["number"]["N"])))
    return [_step(item, data) for item in steps]


def _step(item: Item, data: Mapping[bytes, bytes]) -> Step:
    content: bytes = item["content"]["B"]
    if "pieces" in item:
        names = piece_keys(item["part"]["B"], b"", int(item["pieces"]["N"]))
        if not data.keys() >= set(names):
            raise CorruptRecord(f"pieces of a step of {item['id']['B'].hex()} are missing")
        content += b"".join(data[name] for name in names)
    has_result, length = _CONTENT.unpack_from(content)
    at = _CONTENT.size + length
    digest = content[_CONTENT.size : at]
    return Step(decode_text(item["name"]["B"]), digest, content[at:] if has_result else None)
