"""Verbs that name no record, on DynamoDB: scan the table or one of its indexes. Pure.

`open` lists records that may be abandoned, only while they run: `Due(abandoned=True)` reads nothing
else. `tenants` lists a tenant's records that were not purged yet, for `Purge` alone. Both are
spread over shards and follow the table with a delay: they are only hints, and each change checks
the record itself.

`Due` and `Sweep` read a bounded number of pages of the table per call and continue where the last
call ended; DynamoDB's time to live removes most expired records. `Scan` and `Count` read the whole
table: they are for operators, and cost accordingly.
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
from oncekey.stores.dynamodb.leases import Observation
from oncekey.stores.dynamodb.statements import RECORD, ApiCall, Item, Update, b, key, n, s
from oncekey.stores.dynamodb.verbs import Verbs

OPEN, TENANTS = "open", "tenants"
OPEN_SHOWS = ("fence", "beat", "token", "held", "lapsed")
"""The attributes that the index contains: enough to observe a record's lease."""
PAGES_MAX = 20
"""How many pages, of 1 MB each, one `Due` or `Sweep` reads."""
TOGETHER_MAX = 25
"""How many changes are in flight at once."""

_DUE_FIELDS = ("id", "state", "fence", "beat", "token", "held", "lapsed", "expires", "kept")
_RECORD_FIELDS = (
    *("id", "state", "fence", "token", "beat", "held", "lapsed", "tenant", "operation", "key"),
    *("fingerprint", "fingerprint_version", "lease", "retention", "recovery", "schema", "digests"),
    *("attempt", "lapses", "no_effect", "status", "headers", "resource", "created", "expires"),
    *("replays", "conflicts"),
)


class Scanner:
    """Scans of one table."""

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        # Where the last call ended. If two threads collide here, a page is read twice, or later.
        self._cursors: dict[type, Item | None] = {}

    def perform(self, verb: Any) -> Op[Any]:
        return _METHODS[type(verb)](self, verb)

    def _now(self) -> int:
        return self._verbs.server_clock.now()

    # ---------------------------------------------------------------------------- over the table

    def _read_page(
        self,
        start: Item | None,
        shown: Iterable[str],
        filters: str = "",
        values: Item | None = None,
    ) -> Op[tuple[list[Item], Item | None]]:
        """Return the records of the next page, and where the one after it begins."""
        names = {f"#{name}": name for name in shown}
        parameters: Item = {
            "FilterExpression": f"#part = :record{filters}",
            "ProjectionExpression": ", ".join(names),
            "ExpressionAttributeNames": {**names, "#part": "part"},
            "ExpressionAttributeValues": {":record": b(RECORD), **(values or {})},
            "ConsistentRead": True,
        }
        if start is not None:
            parameters["ExclusiveStartKey"] = start
        [page] = yield from self._verbs.ask_all([self._verbs.call("scan", **parameters)])
        return page["Items"], page.get("LastEvaluatedKey")

    def _collect(self, verb: Due | Sweep, filters: str, values: Item) -> Op[list[Item]]:
        """Return the matching records of the next pages, until there are enough."""
        found: list[Item] = []
        start = self._cursors.get(type(verb))
        for _ in range(PAGES_MAX):
            page, start = yield from self._read_page(start, _DUE_FIELDS, filters, values)
            found += page
            if len(found) >= verb.limit or start is None:
                break
        self._cursors[type(verb)] = start
        return found

    def _count(self, verb: Count) -> Op[dict[State, int]]:
        counts = dict.fromkeys(State, 0)
        start: Item | None = None
        while True:
            page, start = yield from self._read_page(start, ("state",))
            for item in page:
                counts[State(item["state"]["S"])] += 1
            if start is None:
                return counts

    def _scan(self, verb: Scan) -> Op[list[Record]]:
        filters, values = " AND #id > :after", {":after": b(verb.after or b"\x00")}
        if verb.state is not None:
            filters, values = f"{filters} AND #state = :state", {**values, ":state": s(verb.state)}
        if verb.tenant is not None:
            filters += " AND #tenant = :tenant"
            values = {**values, ":tenant": b(as_bytes(verb.tenant))}
        smallest: list[tuple[bytes, int, Item]] = []
        start: Item | None = None
        while True:
            page, start = yield from self._read_page(start, _RECORD_FIELDS, filters, values)
            seen = [(item["id"]["B"], at, item) for at, item in enumerate(page)]
            smallest = heapq.nsmallest(verb.limit, [*smallest, *seen])
            if start is None:
                return [self._verbs.record(item) for _, _, item in smallest]

    def sample(self, limit: int) -> Op[Sample]:
        """Return the records of the first pages: the table is ordered by a hash of the ids."""
        found: list[Record] = []
        start: Item | None = None
        for _ in range(PAGES_MAX):
            page, start = yield from self._read_page(start, _RECORD_FIELDS)
            found += map(self._verbs.record, page)
            if start is None or len(found) >= limit:
                break
        return Sample(found, whole=start is None)

    # -------------------------------------------------------------------------------------- due

    def _due(self, verb: Due) -> Op[list[bytes]]:
        if verb.abandoned:
            found = yield from self._listed_as_open()
        else:
            filters = " AND (#state = :running OR #expires <= :now)"
            values = {":running": s(State.RUNNING), ":now": n(self._now())}
            found = yield from self._collect(verb, filters, values)
        left = sorted((self._left_s(item), item["id"]["B"]) for item in found)
        return [record_id for left_s, record_id in left if left_s <= 0][: max(verb.limit, 0)]

    def _left_s(self, item: Item) -> float:
        """Return the seconds until the record is due; for a running one as far as it was
        observed.
        """
        if "held" in item:
            return items.lease_left_s(item["id"]["B"], item, self._verbs.observer)
        return (items.read_int(item, "expires") - self._now()) / items.MICROS

    def _listed_as_open(self) -> Op[list[Item]]:
        """Return the running records whose recovery is not left to their client."""
        found: list[Item] = []
        for shard in range(items.SHARDS):
            found += yield from self._verbs.pages(self._index(OPEN, n(shard)))
        return found

    def _index(self, index: str, shard: Item, start: Item | None = None) -> ApiCall:
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
        yield from self._announce_lapsed()
        values = {":now": n(self._now())}
        found = yield from self._collect(verb, " AND #expires <= :now", values)
        expired = found[: max(verb.limit, 0)]
        removed = 0
        for item in expired:
            if "kept" in item:
                removed += yield from self._remove_whole(item)
        plain = [self._removal(item["id"]["B"]) for item in expired if "kept" not in item]
        for calls in batched(plain, TOGETHER_MAX):
            removed += yield from self._verbs.count_done(calls)
        return removed

    def _announce_lapsed(self) -> Op[None]:
        """Mark records that were observed to lapse here, so that a retry that reaches another
        process need not wait for a lease again.
        """
        observer = self._verbs.observer
        for record_id, seen in observer.lapses_to_announce(TOGETHER_MAX):
            announced = yield from self._verbs.count_done([self._announcement(record_id, seen)])
            observer.mark_announced(record_id, seen) if announced else observer.forget(record_id)

    def _announcement(self, record_id: bytes, seen: Observation) -> ApiCall:
        """Return the write of a mark, void at the next beat and not made if that has already
        come.
        """
        update = Update()
        update.equal(state=s(State.RUNNING), fence=n(seen.fence), token=b(seen.token))
        update.equal(beat=n(seen.beat))
        update.set(lapsed=n(seen.beat))
        return self._verbs.call("update_item", Key=key(record_id), **update.parameters())

    def _removal(self, record_id: bytes) -> ApiCall:
        """Check the expiry again at the removal: the record may have been renewed or started
        over.
        """
        return self._verbs.call("delete_item", **self._if_expired(record_id))

    def _if_expired(self, record_id: bytes) -> Item:
        update = Update()
        update.only_if(f"{update.name('expires')} <= {update.bind('now', n(self._now()))}")
        return {"Key": key(record_id), **update.condition()}

    def _remove_whole(self, item: Item) -> Op[int]:
        """Remove a record with its parts: in one transaction as many as surely fit."""
        record_id, token = item["id"]["B"], item["token"]["B"]
        found: list[Item] = []
        for kind in (parts.STEP, parts.REQUEST, parts.BODY):
            found += yield from self._verbs.pages(self._verbs.parts(record_id, kind, "id"))
        deletes = [{"Key": key(record_id, part["part"]["B"])} for part in found]
        first = [("Delete", each) for each in deletes[: parts.PARTS_PER_TRANSACTION_MAX]]
        members = [("Delete", self._if_expired(record_id)), *first]
        error = yield from self._verbs.transact(members, token)
        if error is not None:
            return 0
        for batch in batched(deletes[len(first) :], TOGETHER_MAX):
            yield [self._verbs.call("delete_item", **each) for each in batch]
        return 1

    # ------------------------------------------------------------------------------------ purge

    def _purge(self, verb: Purge) -> Op[int]:
        purged = 0
        for shard in range(items.SHARDS):
            purged += yield from self._purge_shard(verb.tenant, shard, verb.limit - purged)
        return purged

    def _purge_shard(self, tenant: str, shard: int, limit: int) -> Op[int]:
        """Purge page by page: a tenant may have more records than fit into memory."""
        purged, start = 0, None
        while purged < limit:
            query = self._index(TENANTS, b(items.owner_key(tenant, shard)), start)
            [page] = yield from self._verbs.ask_all([query])
            for item in page["Items"]:
                if purged < limit:
                    purged += yield from self._blank(item["id"]["B"], tenant)
            start = page.get("LastEvaluatedKey")
            if start is None:
                break
        return purged

    def _blank(self, record_id: bytes, tenant: str) -> Op[int]:
        """Blank the steps first: an interrupted purge finds the record again until it is blank
        itself.
        """
        shown = ("state", "fence", "generation", "kept", "body_pieces", "body_digest", "tenant")
        [read] = yield from self._verbs.ask_all([self._verbs.get(record_id, None, *shown)])
        item = read.get("Item", {})
        if item.get("tenant") != b(as_bytes(tenant)) or item["state"] == s(State.RUNNING):
            return 0
        if "kept" in item and not (yield from self._blank_parts(record_id, item)):
            return 0
        update = self._if_unchanged(item)
        update.remove("key", "headers", "body", "body_pieces", "body_digest")
        update.remove("resource", "digests", "owner")
        call = self._verbs.call("update_item", Key=key(record_id), **update.parameters())
        blanked = yield from self._verbs.count_done([call])
        if blanked and "body_pieces" in item:
            names = parts.piece_keys(
                parts.BODY, item["body_digest"]["B"], items.read_int(item, "body_pieces")
            )
            yield [self._verbs.call("delete_item", Key=key(record_id, name)) for name in names]
        return blanked

    def _if_unchanged(self, item: Item) -> Update:
        update = Update()
        update.equal(state=item["state"], fence=item["fence"])
        return update

    def _blank_parts(self, record_id: bytes, item: Item) -> Op[bool]:
        """Blank every step's result and remove the request, while the record is unchanged: a new
        attempt brings a request of its own.
        """
        verbs, generation = self._verbs, items.read_int(item, "generation")
        kept = yield from verbs.pages(verbs.parts(record_id, parts.STEP))
        requests = yield from verbs.pages(verbs.parts(record_id, parts.REQUEST, "id"))
        writes = [("Delete", {"Key": key(record_id, request["part"]["B"])}) for request in requests]
        writes += [
            ("Update", {"Key": key(record_id, parts.step_key(generation, step.name)), **blank})
            for step in parts.steps_of(generation, kept)
            if (blank := _blank_update(step)) is not None
        ]  # then their pieces, which no step refers to any more
        more = [each["part"]["B"] for each in kept if parts.is_piece(each)]
        writes += [("Delete", {"Key": key(record_id, part)}) for part in more]
        check = ("ConditionCheck", {"Key": key(record_id), **self._if_unchanged(item).condition()})
        for batch in batched(writes, parts.PARTS_PER_TRANSACTION_MAX):
            if (yield from verbs.transact([check, *batch], record_id)) is not None:
                return False
        return True

    # ------------------------------------------------------------------------------------ tally

    def _tally(self, verb: Tally) -> Op[None]:
        ids = sorted(verb.replays.keys() | verb.conflicts.keys())
        calls = [self._add_counts(i, verb.replays.get(i, 0), verb.conflicts.get(i, 0)) for i in ids]
        for batch in batched(calls, TOGETHER_MAX):
            yield from self._verbs.count_done(batch)

    def _add_counts(self, record_id: bytes, replays: int, conflicts: int) -> ApiCall:
        return self._verbs.call(
            "update_item",
            Key=key(record_id),
            UpdateExpression="ADD replays :replays, conflicts :conflicts",
            ConditionExpression="attribute_exists(id)",
            ExpressionAttributeValues={":replays": n(replays), ":conflicts": n(conflicts)},
        )


def _blank_update(step: Step) -> Item | None:
    if step.result is None:
        return None
    update = Update()
    update.set(content=b(parts.step_content(Step(step.name, step.digest, None))))
    update.remove("done", "pieces")
    return update.parameters()


_METHODS: dict[type, Callable[[Scanner, Any], Op[Any]]] = {
    Tally: Scanner._tally,
    Due: Scanner._due,
    Sweep: Scanner._sweep,
    Scan: Scanner._scan,
    Count: Scanner._count,
    Purge: Scanner._purge,
}
