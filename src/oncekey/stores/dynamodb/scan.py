"""Verbs that name no record, on DynamoDB: a walk over the table or one of its indexes. Pure.

`open` lists what may be abandoned, and only while it runs: `Due(abandoned=True)` reads nothing
else. `tenants` lists a tenant's records that were not blanked yet, for `Purge` alone. Both are
spread over shards, and follow the table a moment later: they only hint, and each change is judged
by the record itself.

`Due` and `Sweep` look at a bounded number of pages of the table per call and go on where the last
call ended; DynamoDB's own time to live removes most of what is expired. `Scan` and `Count` read the
whole table: they are for an operator, and cost accordingly.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from oncekey._core.batched import batched
from oncekey._core.framing import as_bytes
from oncekey._core.op import Op
from oncekey._core.record import Record, State, Step
from oncekey._core.verbs import Count, Due, Purge, Scan, Sweep, Tally
from oncekey.stores.checks import Sample
from oncekey.stores.dynamodb import items, parts
from oncekey.stores.dynamodb.leases import Sighting
from oncekey.stores.dynamodb.statements import RECORD, Call, Item, Update, b, key, n, s
from oncekey.stores.dynamodb.verbs import Verbs

OPEN, TENANTS = "open", "tenants"
OPEN_SHOWS = ("fence", "beat", "token", "held", "lapsed")
"""What the index shows of a record: enough to observe its lease."""
PAGES_MAX = 20
"""How many pages, of 1 MB each, one `Due` or `Sweep` looks at."""
TOGETHER_MAX = 25
"""Changes that are asked for at the same time."""

_SIGHTED = ("id", "state", "fence", "beat", "token", "held", "lapsed", "expires", "kept")
_BODILESS = (
    *("id", "state", "fence", "token", "beat", "held", "lapsed", "tenant", "operation", "key"),
    *("fingerprint", "fingerprint_version", "lease", "retention", "recovery", "schema", "digests"),
    *("attempt", "lapses", "no_effect", "status", "headers", "resource", "created", "expires"),
    *("replays", "conflicts"),
)


class Walker:
    """The walks of one table."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        # Where the last call ended. If two threads collide here, a page is seen twice, or later.
        self._cursors: dict[type, Item | None] = {}

    def perform(self, verb: Any) -> Op[Any]:
        return _WALKS[type(verb)](self, verb)

    def _now(self) -> int:
        return self._verbs.dates.now()

    # ---------------------------------------------------------------------------- over the table

    def _page(
        self, start: Item | None, shown: Iterable[str], only: str = "", given: Item | None = None
    ) -> Op[tuple[list[Item], Item | None]]:
        """Records of the next page, and where the one after it begins."""
        names = {f"#{name}": name for name in shown}
        parameters: Item = {
            "FilterExpression": f"#part = :record{only}",
            "ProjectionExpression": ", ".join(names),
            "ExpressionAttributeNames": {**names, "#part": "part"},
            "ExpressionAttributeValues": {":record": b(RECORD), **(given or {})},
            "ConsistentRead": True,
        }
        if start is not None:
            parameters["ExclusiveStartKey"] = start
        [page] = yield from self._verbs.all([self._verbs.call("scan", **parameters)])
        return page["Items"], page.get("LastEvaluatedKey")

    def _expected(self, verb: Due | Sweep, only: str, given: Item) -> Op[list[Item]]:
        """What is wanted of the next pages, until there is enough of it."""
        found: list[Item] = []
        start = self._cursors.get(type(verb))
        for _ in range(PAGES_MAX):
            page, start = yield from self._page(start, _SIGHTED, only, given)
            found += page
            if len(found) >= verb.limit or start is None:
                break
        self._cursors[type(verb)] = start
        return found

    def _count(self, verb: Count) -> Op[dict[State, int]]:
        counts = dict.fromkeys(State, 0)
        start: Item | None = None
        while True:
            page, start = yield from self._page(start, ("state",))
            for item in page:
                counts[State(item["state"]["S"])] += 1
            if start is None:
                return counts

    def _scan(self, verb: Scan) -> Op[list[Record]]:
        only, given = " AND #id > :after", {":after": b(verb.after or b"\x00")}
        if verb.state is not None:
            only, given = f"{only} AND #state = :state", {**given, ":state": s(verb.state)}
        if verb.tenant is not None:
            only += " AND #tenant = :tenant"
            given = {**given, ":tenant": b(as_bytes(verb.tenant))}
        smallest: list[tuple[bytes, int, Item]] = []
        start: Item | None = None
        while True:
            page, start = yield from self._page(start, _BODILESS, only, given)
            seen = [(item["id"]["B"], at, item) for at, item in enumerate(page)]
            smallest = heapq.nsmallest(verb.limit, [*smallest, *seen])
            if start is None:
                return [self._verbs.record(item) for _, _, item in smallest]

    def sample(self, limit: int) -> Op[Sample]:
        """The records of the first pages: the table is in the order of a hash of its ids."""
        found: list[Record] = []
        start: Item | None = None
        for _ in range(PAGES_MAX):
            page, start = yield from self._page(start, _BODILESS)
            found += map(self._verbs.record, page)
            if start is None or len(found) >= limit:
                break
        return Sample(found, whole=start is None)

    # -------------------------------------------------------------------------------------- due

    def _due(self, verb: Due) -> Op[list[bytes]]:
        if verb.abandoned:
            found = yield from self._open()
        else:
            only = " AND (#state = :running OR #expires <= :now)"
            given = {":running": s(State.RUNNING), ":now": n(self._now())}
            found = yield from self._expected(verb, only, given)
        left = sorted((self._left_s(item), item["id"]["B"]) for item in found)
        return [record_id for left_s, record_id in left if left_s <= 0][: max(verb.limit, 0)]

    def _left_s(self, item: Item) -> float:
        """Until somebody has to act; of what runs, as far as it was watched."""
        if "held" in item:
            return items.lease_left_s(item["id"]["B"], item, self._verbs.sightings)
        return (items.number(item, "expires") - self._now()) / items.MICROS

    def _open(self) -> Op[list[Item]]:
        """What runs and is not left to its client."""
        found: list[Item] = []
        for number in range(items.SHARDS):
            found += yield from self._verbs.pages(self._index(OPEN, n(number)))
        return found

    def _index(self, index: str, shard: Item, start: Item | None = None) -> Call:
        attribute = {OPEN: "open", TENANTS: "owner"}[index]
        return self._verbs.call(
            "query",
            IndexName=index,
            KeyConditionExpression="#shard = :shard",
            ExpressionAttributeNames={"#shard": attribute},
            ExpressionAttributeValues={":shard": shard},
            **({} if start is None else {"ExclusiveStartKey": start}),
        )

    # ------------------------------------------------------------------------------------ sweep

    def _sweep(self, verb: Sweep) -> Op[int]:
        yield from self._tell_lapsed()
        given = {":now": n(self._now())}
        found = yield from self._expected(verb, " AND #expires <= :now", given)
        expired = found[: max(verb.limit, 0)]
        removed = 0
        for item in expired:
            if "kept" in item:
                removed += yield from self._remove_whole(item)
        plain = [self._removal(item["id"]["B"]) for item in expired if "kept" not in item]
        for calls in batched(plain, TOGETHER_MAX):
            removed += yield from self._verbs.carried_out(calls)
        return removed

    def _tell_lapsed(self) -> Op[None]:
        """Say of records that were seen to lapse here that they did, so that a retry which comes to
        another process need not wait for a lease again.
        """
        sightings = self._verbs.sightings
        for record_id, seen in sightings.untold(TOGETHER_MAX):
            told = yield from self._verbs.carried_out([self._mark(record_id, seen)])
            sightings.tell(record_id, seen) if told else sightings.forget(record_id)

    def _mark(self, record_id: bytes, seen: Sighting) -> Call:
        """Void with the next beat, and not written if that has come already."""
        update = Update()
        update.equal(state=s(State.RUNNING), fence=n(seen.fence), token=b(seen.token))
        update.equal(beat=n(seen.beat))
        update.set(lapsed=n(seen.beat))
        return self._verbs.call("update_item", Key=key(record_id), **update.parameters())

    def _removal(self, record_id: bytes) -> Call:
        """Judged at the removal: it may have been renewed, or started over."""
        return self._verbs.call("delete_item", **self._removing(record_id))

    def _removing(self, record_id: bytes) -> Item:
        update = Update()
        update.only_if(f"{update.name('expires')} <= {update.given('now', n(self._now()))}")
        return {"Key": key(record_id), **update.condition()}

    def _remove_whole(self, item: Item) -> Op[int]:
        """Remove a record with its parts: as many in one transaction as it surely can hold."""
        record_id, token = item["id"]["B"], item["token"]["B"]
        found: list[Item] = []
        for kind in (parts.STEP, parts.REQUEST, parts.BODY):
            found += yield from self._verbs.pages(self._verbs.parts(record_id, kind, "id"))
        deletes = [{"Key": key(record_id, part["part"]["B"])} for part in found]
        first = [("Delete", each) for each in deletes[: parts.PARTS_PER_TRANSACTION_MAX]]
        members = [("Delete", self._removing(record_id)), *first]
        denied = yield from self._verbs.together(members, token)
        if denied is not None:
            return 0
        for batch in batched(deletes[len(first) :], TOGETHER_MAX):
            yield [self._verbs.call("delete_item", **each) for each in batch]
        return 1

    # ------------------------------------------------------------------------------------ purge

    def _purge(self, verb: Purge) -> Op[int]:
        purged = 0
        for number in range(items.SHARDS):
            purged += yield from self._purge_shard(verb.tenant, number, verb.limit - purged)
        return purged

    def _purge_shard(self, tenant: str, number: int, limit: int) -> Op[int]:
        """Page by page: a tenant may have more records than fit into memory."""
        purged, start = 0, None
        while purged < limit:
            query = self._index(TENANTS, b(items.owner(tenant, number)), start)
            [page] = yield from self._verbs.all([query])
            for item in page["Items"]:
                if purged < limit:
                    purged += yield from self._blank(item["id"]["B"], tenant)
            start = page.get("LastEvaluatedKey")
            if start is None:
                break
        return purged

    def _blank(self, record_id: bytes, tenant: str) -> Op[int]:
        """Steps first: while the record is not blank, a purge that was interrupted comes back."""
        shown = ("state", "fence", "generation", "kept", "body_pieces", "body_digest", "tenant")
        [read] = yield from self._verbs.all([self._verbs.get(record_id, None, *shown)])
        item = read.get("Item", {})
        if item.get("tenant") != b(as_bytes(tenant)) or item["state"] == s(State.RUNNING):
            return 0
        if "kept" in item and not (yield from self._blank_parts(record_id, item)):
            return 0
        update = self._unchanged(item)
        update.remove("key", "headers", "body", "body_pieces", "body_digest")
        update.remove("resource", "digests", "owner")
        call = self._verbs.call("update_item", Key=key(record_id), **update.parameters())
        blanked = yield from self._verbs.carried_out([call])
        if blanked and "body_pieces" in item:
            names = parts.piece_parts(
                parts.BODY, item["body_digest"]["B"], items.number(item, "body_pieces")
            )
            yield [self._verbs.call("delete_item", Key=key(record_id, name)) for name in names]
        return blanked

    def _unchanged(self, item: Item) -> Update:
        update = Update()
        update.equal(state=item["state"], fence=item["fence"])
        return update

    def _blank_parts(self, record_id: bytes, item: Item) -> Op[bool]:
        """Leave of every step that it was begun, and of a request nothing, while the record is what
        it was: whoever runs it again brings a request of its own.
        """
        verbs, generation = self._verbs, items.number(item, "generation")
        kept = yield from verbs.pages(verbs.parts(record_id, parts.STEP))
        requests = yield from verbs.pages(verbs.parts(record_id, parts.REQUEST, "id"))
        writes = [("Delete", {"Key": key(record_id, request["part"]["B"])}) for request in requests]
        writes += [
            ("Update", {"Key": key(record_id, parts.step_part(generation, step.name)), **blank})
            for step in parts.steps_of(generation, kept)
            if (blank := _blanked(step)) is not None
        ]  # and then their pieces, of which no step speaks any more
        more = [each["part"]["B"] for each in kept if parts.is_piece(each)]
        writes += [("Delete", {"Key": key(record_id, part)}) for part in more]
        check = ("ConditionCheck", {"Key": key(record_id), **self._unchanged(item).condition()})
        for batch in batched(writes, parts.PARTS_PER_TRANSACTION_MAX):
            if (yield from verbs.together([check, *batch], record_id)) is not None:
                return False
        return True

    # ------------------------------------------------------------------------------------ tally

    def _tally(self, verb: Tally) -> Op[None]:
        ids = sorted(verb.replays.keys() | verb.conflicts.keys())
        calls = [self._counted(i, verb.replays.get(i, 0), verb.conflicts.get(i, 0)) for i in ids]
        for batch in batched(calls, TOGETHER_MAX):
            yield from self._verbs.carried_out(batch)

    def _counted(self, record_id: bytes, replays: int, conflicts: int) -> Call:
        return self._verbs.call(
            "update_item",
            Key=key(record_id),
            UpdateExpression="ADD replays :replays, conflicts :conflicts",
            ConditionExpression="attribute_exists(id)",
            ExpressionAttributeValues={":replays": n(replays), ":conflicts": n(conflicts)},
        )


def _blanked(step: Step) -> Item | None:
    if step.result is None:
        return None
    update = Update()
    update.set(content=b(parts.step_content(Step(step.name, step.digest, None))))
    update.remove("done", "pieces")
    return update.parameters()


_WALKS: dict[type, Callable[[Walker, Any], Op[Any]]] = {
    Tally: Walker._tally,
    Due: Walker._due,
    Sweep: Walker._sweep,
    Scan: Walker._scan,
    Count: Walker._count,
    Purge: Walker._purge,
}
