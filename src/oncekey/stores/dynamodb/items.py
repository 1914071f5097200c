"""Records as items of a DynamoDB table. Pure.

A record is one item, so a claim, a completion and a replay are one conditional write each. Its
partition key is the record id; the sort key says which part it is:

    r                               the record
    s <generation> <name's digest>  a step; with a <number> appended, a piece of its result
    q <token> <number>              a piece of the request that this attempt keeps
    b <body's digest> <number>      a piece of a body that is too large for the record's item

The generation is the fence under which the record began or started over: steps of an earlier one
are ignored. Pieces of bodies are named by their content, so that no late writer can change a
replay; pieces of requests by the attempt that brought them.

Garbage is removed by DynamoDB's time to live (`ttl`), which may be days late and decides nothing:
`expires` does. TTL knows nothing of a record's parts, so records that have steps or a request are
`kept` from it; `Sweep` removes them together with their parts.
"""

from __future__ import annotations

import hashlib

from oncekey._core.framing import as_bytes
from oncekey._core.record import Answer, Claim, Record, State, decode_headers, encode_headers
from oncekey._core.verbs import Swap
from oncekey.errors import CorruptRecord, StoreError, TooLong
from oncekey.stores.dynamodb.leases import LeaseObserver
from oncekey.stores.dynamodb.parts import REQUEST_BYTES_MAX, body_digest, pieces
from oncekey.stores.dynamodb.statements import Item, Update, b, decode_text, key, n, s
from oncekey.stores.sql import decode_digests, encode_digests

SHARDS = 8
"""How many partitions an index is spread over: one takes 1,000 writes a second."""
INLINE_BYTES_MAX = 65_536
"""Bodies up to this size are stored in the record's item: every write to an item costs by its
size.
"""
HEADERS_BYTES_MAX = 262_144
"""Together with the largest inline body and everything else, headers of this size fit into an
item.
"""
MICROS = 1_000_000

NO_TTL = {"S": "parts"}
"""Replaces the time to live, which must be a number: DynamoDB leaves such items alone."""


def shard(record_id: bytes) -> int:
    return record_id[-1] % SHARDS


def owner_key(tenant: str, shard_number: int) -> bytes:
    """Return the partition of the tenant index that holds one shard of a tenant's records."""
    return bytes((shard_number,)) + hashlib.sha256(as_bytes(tenant)).digest()


def ttl_s(expires: int) -> int:
    return expires // MICROS + 1


# -------------------------------------------------------------------------------------- claims


def new_item(claim: Claim, fence: int, now: int, latest: int) -> Item:
    """Return the item of a new record."""
    expires = latest + round((claim.lease_s + claim.retention_s) * MICROS)
    item = {
        **key(claim.id),
        **claim_attributes(claim),
        "state": s(State.RUNNING),
        "fence": n(fence),
        "generation": n(fence),
        "token": b(claim.token),
        "attempt": n(1),
        "beat": n(0),
        "held": n(claim.lease_s),
        "created": n(now),
        "expires": n(expires),
        "ttl": n(ttl_s(expires)),
    }
    if claim.request is not None:
        item["kept"] = item["ttl"] = NO_TTL
    return item


def claim_attributes(claim: Claim) -> Item:
    """Return the attributes that a new attempt writes, including the key, which a purge may have
    blanked.
    """
    item = {
        "tenant": b(as_bytes(claim.tenant)),
        "operation": b(as_bytes(claim.operation)),
        "key": b(as_bytes(claim.key)),
        "fingerprint": b(claim.fingerprint),
        "fingerprint_version": n(claim.fingerprint_version),
        "lease": n(claim.lease_s),
        "retention": n(claim.retention_s),
        "recovery": s(claim.recovery),
        "schema": n(claim.schema_version),
    }
    if claim.key:  # a purged record has no key: no purge needs to find it again
        item["owner"] = b(owner_key(claim.tenant, shard(claim.id)))
    if digests := encode_digests(claim.field_digests):
        item["digests"] = s(digests)
    if claim.recovery != "rerun":
        item["open"] = n(shard(claim.id))
    if claim.request is not None:
        if len(claim.request) > REQUEST_BYTES_MAX:
            raise StoreError(
                f"a request of {len(claim.request)} bytes cannot be stored in DynamoDB, at most "
                f"{REQUEST_BYTES_MAX}: lower Policy(request_kept_bytes_max=…)"
            )
        item["request"] = n(len(pieces(claim.request)))
    return item


_OPTIONAL = ("digests", "open", "request", "owner")
_ANSWER = ("status", "headers", "body", "body_pieces", "body_digest", "resource")


def swap_update(verb: Swap, fence: int, now: int, latest: int) -> Update:
    """Return the update that carries out a swap, if the record is as expected."""
    update = Update()
    update.equal(state=s(verb.state), fence=n(verb.fence), token=b(verb.token))
    expires = latest + round(((verb.lease_s or 0.0) + verb.retention_s) * MICROS)
    none = update.bind("none", n(0))  # some evaluate the sum before the condition
    update.set(
        state=s(verb.to),
        beat=f"if_not_exists({update.name('beat')}, {none}) + {update.bind('one', n(1))}",
        expires=n(expires),
    )
    if verb.claim is not None and verb.claim.request is not None:
        update.set(kept=NO_TTL, ttl=NO_TTL)
    else:  # bound only where it is used: Amazon refuses unused values
        left = update.bind("ttl", n(ttl_s(expires)))
        update.set(ttl=f"if_not_exists({update.name('kept')}, {left})")
    if verb.raise_fence:
        update.set(fence=n(fence))
    if verb.new_token is not None:
        update.set(token=b(verb.new_token))
    if verb.attempt is not None:
        update.set(attempt=n(verb.attempt))
    if verb.lapses is not None:
        update.set(lapses=n(verb.lapses))
    update.set(no_effect=n(1)) if verb.no_effect else update.remove("no_effect")
    if verb.to is State.RUNNING:
        update.set(held=n(verb.lease_s or 0.0))
    else:
        update.remove("open", "held", "request")
    if verb.fresh:
        update.set(created=n(now), generation=n(fence))
        update.remove("replays", "conflicts", *_ANSWER)
    if verb.claim is not None:
        update.remove(*_OPTIONAL)
        update.set(**claim_attributes(verb.claim))
    if verb.to is State.COMPLETED:
        update.remove(*_ANSWER)
        update.set(**answer_attributes(verb))
    return update


def answer_attributes(verb: Swap) -> Item:
    """Return the attributes that a completion adds; a long body is stored in pieces."""
    item: Item = {}
    if verb.answer is not None:
        item["status"] = n(verb.answer.status)
        headers = encode_headers(verb.answer.headers)
        if len(headers) > HEADERS_BYTES_MAX:
            raise TooLong(
                f"the headers of a response have {len(headers)} bytes; in DynamoDB at most "
                f"{HEADERS_BYTES_MAX} can be stored: send fewer"
            )
        item["headers"] = b(headers)
        body = verb.answer.body
        if body is not None and len(body) <= INLINE_BYTES_MAX:
            item["body"] = b(body)
        elif body is not None:
            item["body_pieces"] = n(len(pieces(body)))
            item["body_digest"] = b(body_digest(body))
    if verb.resource_id is not None:
        item["resource"] = b(as_bytes(verb.resource_id))
    return item


# -------------------------------------------------------------------------------------- records


def record(item: Item, now: int, observer: LeaseObserver, body: bytes | None = None) -> Record:
    """Build a record from an item. `body` is one that was stored in pieces."""
    try:
        return _record(item, now, observer, body)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(
            f"the item {item.get('id')!r} cannot be read ({error!r}): something other than oncekey "
            "wrote it"
        ) from error


def _record(item: Item, now: int, observer: LeaseObserver, body: bytes | None) -> Record:
    record_id, state = item["id"]["B"], State(item["state"]["S"])
    fence, beat, token = int(item["fence"]["N"]), int(item["beat"]["N"]), item["token"]["B"]
    left_s = 0.0
    if state is State.RUNNING:
        left_s = lease_left_s(record_id, item, observer)
    else:
        observer.forget(record_id)
    return Record(
        id=record_id,
        token=token,
        tenant=decode_text(item["tenant"]["B"]),
        operation=decode_text(item["operation"]["B"]),
        key=decode_text(item["key"]["B"]) if "key" in item else "",
        fingerprint=item["fingerprint"]["B"],
        fingerprint_version=int(item["fingerprint_version"]["N"]),
        lease_s=float(item["lease"]["N"]),
        retention_s=float(item["retention"]["N"]),
        recovery=item["recovery"]["S"],
        schema_version=int(item["schema"]["N"]),
        field_digests=decode_digests(item["digests"]["S"] if "digests" in item else None),
        state=state,
        fence=fence,
        attempt=int(item["attempt"]["N"]),
        lapses=read_int(item, "lapses"),
        beat=beat,
        no_effect="no_effect" in item,
        answer=_answer(item, body),
        resource_id=decode_text(item["resource"]["B"]) if "resource" in item else None,
        age_s=(now - int(item["created"]["N"])) / MICROS,
        lease_left_s=left_s,
        expires_in_s=(int(item["expires"]["N"]) - now) / MICROS,
        replays=read_int(item, "replays"),
        conflicts=read_int(item, "conflicts"),
    )


def lease_left_s(record_id: bytes, item: Item, observer: LeaseObserver) -> float:
    """Return what is left of a running record's lease, as far as this process has observed it."""
    return observer.observe(
        record_id,
        read_int(item, "fence"),
        read_int(item, "beat"),
        item["token"]["B"],
        float(item["held"]["N"]),
        lapsed=item.get("lapsed") == item["beat"],
    )


def _answer(item: Item, body: bytes | None) -> Answer | None:
    if "status" not in item:
        return None
    # A purge keeps the status: it shows that there was a response, not what it said.
    headers = decode_headers(item["headers"]["B"]) if "headers" in item else ()
    inline: bytes | None = item["body"]["B"] if "body" in item else body
    return Answer(int(item["status"]["N"]), headers, inline)


def read_int(item: Item, attribute: str) -> int:
    return int(item[attribute]["N"]) if attribute in item else 0
