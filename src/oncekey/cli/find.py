"""Finding the record that is meant: by the digits of its id, or by whose key it is."""

from __future__ import annotations

from oncekey._core.key import derive, record_id
from oncekey._core.record import Record
from oncekey._core.verbs import Find, Scan
from oncekey.errors import Misuse
from oncekey.stores.connection import StoreConnection

ID_BYTES = 32
ID_DIGITS_MIN = 4


def find(line: StoreConnection, given: str) -> Record | None:
    """By what stands in one word: the first digits of an id, or TENANT/OPERATION/KEY.

    The operation may hold slashes, tenant and key may not; it is empty where the scope is the
    tenant.
    """
    if "/" not in given:
        return find_by_digits(line, given)
    tenant, _, rest = given.partition("/")
    operation, slash, key = rest.rpartition("/")
    if not tenant or not slash or not key:
        raise Misuse("write a record as the digits of its id, or as TENANT/OPERATION/KEY")
    return find_by_key(line, tenant, operation or None, key)


def find_by_key(
    line: StoreConnection, tenant: str, operation: str | None, given: str
) -> Record | None:
    """The record of a key, or of a message's id: one that cannot be a key is kept by its digest."""
    both = [key for key in dict.fromkeys((given, derive(given))) if isinstance(key, str)]
    found = line.perform([Find(record_id(tenant, operation, key)) for key in both])
    return next((record for record in found if record is not None), None)


def find_by_digits(line: StoreConnection, given: str) -> Record | None:
    """The record whose id begins with these digits, if there is exactly one."""
    digits = id_digits(given)
    if len(digits) < ID_DIGITS_MIN:
        raise Misuse(f"an id needs at least {ID_DIGITS_MIN} digits")
    lowest = int(digits.ljust(ID_BYTES * 2, "0"), 16)
    after = (lowest - 1).to_bytes(ID_BYTES, "big") if lowest else b""
    [records] = line.perform([Scan(2, after=after)])
    ids = [record.id for record in records if record.id.hex().startswith(digits)]
    if len(ids) > 1:
        raise Misuse(f"more than one id begins with {digits}: give more digits")
    if not ids:
        return None
    [record] = line.perform([Find(ids[0])])  # a scan leaves the body out
    found: Record | None = record
    return found


def id_digits(text: str) -> str:
    digits = text.strip().lower()
    if not digits or len(digits) > ID_BYTES * 2 or set(digits) - set("0123456789abcdef"):
        raise Misuse(
            f"an id is up to {ID_BYTES * 2} hexadecimal digits, as `oncekey list` shows it"
        )
    return digits
