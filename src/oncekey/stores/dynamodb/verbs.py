"""The verbs that name a record, on DynamoDB: each an operation that yields calls. Pure.

Every write is one conditional request that is told what stands there if the condition does not
hold, so that who loses needs no second look. Steps and kept requests are items of their own and
travel with a write to their record in one transaction.

A take-over is refused unless this process has watched the record for a whole lease, and then it
presents the beat that it saw: see `observed`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import Claim, Glimpse, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Done,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Refused,
    Requested,
    Steps,
    Swap,
    When,
)
from oncekey.errors import CorruptRecord, StoreError, StoreUnavailable
from oncekey.stores.base import INSERT_ROUNDS_MAX
from oncekey.stores.dynamodb import items, parts
from oncekey.stores.dynamodb.leases import Sightings
from oncekey.stores.dynamodb.server_date import Dates
from oncekey.stores.dynamodb.statements import Call, Denied, Item, Update, b, key, n, projection, s

TRANSACTION_MAX = 100
"""Members of one transaction."""
_ALL_OLD = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}

Judge = Callable[[Denied], StoreError]


class Verbs:
    """The verbs of one table. `judge` says what an answer means that nobody here expects."""

    def __init__(self, table: str, dates: Dates, sightings: Sightings, judge: Judge) -> None:
        self.table = table
        self.dates = dates
        self.sightings = sightings
        self._judge = judge
        self._numbers = itertools.count(1)

    def perform(self, verb: Any) -> Op[Any]:
        return _VERBS[type(verb)](self, verb)

    # --------------------------------------------------------------------------------- asking

    def call(self, method: str, **parameters: Any) -> Call:
        return Call(method, {"TableName": self.table, **parameters})

    def get(self, record_id: bytes, part: bytes | None = None, *only: str) -> Call:
        """A read of what was acknowledged last, never of a replica."""
        place = key(record_id) if part is None else key(record_id, part)
        shown = projection(only) if only else {}
        return self.call("get_item", Key=place, ConsistentRead=True, **shown)

    def all(self, calls: Sequence[Call]) -> Op[list[Item]]:
        """The answers, where every call must be carried out."""
        answers: list[Item] = []
        if calls:
            for answer in (yield list(calls)):
                if isinstance(answer, StoreError):
                    raise answer
                if isinstance(answer, Denied):
                    raise self._judge(answer)
                answers.append(answer)
        return answers

    def one(self, call: Call) -> Op[Item | Denied]:
        """The answer, or that a condition did not hold and what stands there."""
        [answer] = yield [call]
        return self._expected(answer)

    def carried_out(self, calls: Sequence[Call]) -> Op[int]:
        """How many of the calls were carried out; a condition that does not hold is no error."""
        answers = yield list(calls)
        return sum(not isinstance(self._expected(answer), Denied) for answer in answers)

    def _expected(self, answer: Item | Denied | StoreError) -> Item | Denied:
        """Raise what an answer means, unless the call was carried out or its condition did not
        hold.
        """
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, Denied) and not answer.by_condition:
            raise self._judge(answer)
        return answer

    def together(self, members: Sequence[tuple[str, Item]], token: bytes) -> Op[Denied | None]:
        """Carry out writes in one transaction. Else which condition did not hold, as `reasons`.

        Its token makes it safe to repeat: DynamoDB knows it again for ten minutes.
        """
        named = [{kind: {"TableName": self.table, **write}} for kind, write in members]
        [answer] = yield [transaction(named, self.request_token(token))]
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, Denied):
            codes = {code for code, _ in answer.reasons} - {"None"}
            if codes != {"ConditionalCheckFailed"}:
                raise self._judge(answer)
            return answer
        return None

    def request_token(self, token: bytes) -> str:
        """Differs from question to question; `token` is an attempt's own and random."""
        asked = f"{os.getpid()} {next(self._numbers)} {self.dates.clock()}".encode()
        return hashlib.sha256(token + asked).hexdigest()[:36]

    def pages(self, query: Call) -> Op[list[Item]]:
        """All items of a query, page by page."""
        found: list[Item] = []
        while True:
            [page] = yield from self.all([query])
            found += page["Items"]
            if "LastEvaluatedKey" not in page:
                return found
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
            query = Call(query.method, {**query.parameters, **start})

    def parts(self, record_id: bytes, kind: bytes, *only: str) -> Call:
        """The query for all parts of a kind."""
        shown = projection(("part", *only)) if only else {}
        names = {**shown.pop("ExpressionAttributeNames", {}), "#id": "id", "#part": "part"}
        return self.call(
            "query",
            KeyConditionExpression="#id = :id AND begins_with(#part, :kind)",
            ExpressionAttributeNames=names,
            ExpressionAttributeValues={":id": b(record_id), ":kind": b(kind)},
            ConsistentRead=True,
            **shown,
        )

    def whole(self, item: Item) -> Op[Record]:
        """The record, with a body that is kept in pieces."""
        for _ in range(INSERT_ROUNDS_MAX):
            if "body_pieces" not in item:
                return self.record(item)
            record_id, digest = item["id"]["B"], item["body_digest"]["B"]
            names = parts.piece_parts(parts.BODY, digest, items.number(item, "body_pieces"))
            pieces = yield from self.all([self.get(record_id, name) for name in names])
            if all("Item" in piece for piece in pieces):
                body = b"".join(piece["Item"]["data"]["B"] for piece in pieces)
                return self.record(item, body)
            [again] = yield from self.all([self.get(record_id)])  # it changed since, or vanished
            if item == again.get("Item", item):
                break
            item = again["Item"]
        raise CorruptRecord(f"pieces of the answer of {item['id']['B'].hex()} are missing")

    def record(self, item: Item, body: bytes | None = None) -> Record:
        return items.record(item, self.dates.now(), self.sightings, body)

    def refused(self, item: Item | None) -> Op[Refused]:
        return Refused(None if item is None else (yield from self.whole(item)))

    # --------------------------------------------------------------------------------- insert

    def _insert(self, verb: Insert) -> Op[Inserted | Found]:
        claim = verb.claim
        for _ in range(INSERT_ROUNDS_MAX):
            fence = self.dates.fence()
            put = {
                "Item": items.inserted(claim, fence, self.dates.now(), self.dates.latest()),
                "ConditionExpression": "attribute_not_exists(id)",
                **_ALL_OLD,
            }
            if claim.request is None:
                answer = yield from self.one(self.call("put_item", **put))
                if not isinstance(answer, Denied):
                    return Inserted(fence)
                found = answer.item
            else:
                members = [("Put", put), *self._request_puts(claim)]
                denied = yield from self.together(members, claim.token)
                if denied is None:
                    return Inserted(fence)
                found = denied.reasons[0][1]
            if found is not None:
                return Found((yield from self.whole(found)))
        raise StoreUnavailable(f"{self.table} neither took nor showed a record, again and again")

    def _request_puts(self, claim: Claim) -> list[tuple[str, Item]]:
        if claim.request is None:
            return []
        return [("Put", {"Item": item}) for item in parts.request_items(claim)]

    # ----------------------------------------------------------------------------------- swap

    def _swap(self, verb: Swap) -> Op[Done | Refused]:
        now, latest = self.dates.now(), self.dates.latest()
        fence = self.dates.fence(verb.fence) if verb.raise_fence else verb.fence
        update = items.swapped(verb, fence, now, latest)
        if verb.when is When.EXPIRED:
            update.only_if(f"{update.name('expires')} <= {update.given('now', n(now))}")
        elif verb.when is not When.ANY:
            beat = self._watched(verb)
            if beat is None:
                [found] = yield from self.all([self.get(verb.id)])
                return (yield from self.refused(found.get("Item")))
            update.equal(beat=n(beat))
        yield from self._put_body(verb, latest)
        return (yield from self._carry_out(verb, update, fence))

    def _watched(self, verb: Swap) -> int | None:
        """The beat at which this process has seen that the swap is due; None if it has not."""
        if verb.when is When.LAPSED:
            return self.sightings.lapsed(verb.id, verb.fence, verb.token)
        return self.sightings.overlong(verb.id, verb.fence, verb.token, verb.lease_s or 0.0)

    def _put_body(self, verb: Swap, latest: int) -> Op[None]:
        """Pieces of a large body are there before the record speaks of them. Who comes late with
        the same ones does not make them live shorter.
        """
        body = None if verb.answer is None else verb.answer.body
        if verb.to is not State.COMPLETED or body is None or len(body) <= items.INLINE_BYTES_MAX:
            return
        ttl_s = items.ttl_s(latest + round(verb.retention_s * items.MICROS))
        puts = [
            self.call(
                "put_item",
                Item=piece,
                ConditionExpression="attribute_not_exists(id) OR #ttl < :ttl",
                ExpressionAttributeNames={"#ttl": "ttl"},
                ExpressionAttributeValues={":ttl": piece["ttl"]},
            )
            for piece in parts.body_items(verb.id, body, ttl_s)
        ]
        yield from self.carried_out(puts)

    def _carry_out(self, verb: Swap, update: Update, fence: int) -> Op[Done | Refused]:
        beside: list[tuple[str, Item]] = []
        if verb.claim is not None:
            beside = self._request_puts(verb.claim)
        if verb.state is State.UNKNOWN and verb.to is State.RELEASED:
            beside = yield from self._begun_steps(verb.id)
        write = {"Key": key(verb.id), **update.parameters(), **_ALL_OLD}
        if beside:
            members = [("Update", write), *beside[: TRANSACTION_MAX - 1]]
            denied = yield from self.together(members, verb.new_token or verb.token)
            if denied is not None:
                return (yield from self.refused(denied.reasons[0][1]))
            old: Item = {"kept": items.KEPT}
        else:
            if not (verb.to is State.RUNNING and verb.claim is None):
                write["ReturnValues"] = "ALL_OLD"
            answer = yield from self.one(self.call("update_item", **write))
            if isinstance(answer, Denied):
                return (yield from self.refused(answer.item))
            old = answer.get("Attributes", {})
        if "kept" in old and ("request" in old or verb.claim is not None):
            yield from self._forget_parts(verb, fence)
        return Done(fence)

    def _begun_steps(self, record_id: bytes) -> Op[list[tuple[str, Item]]]:
        """The removal of steps that were only begun: the operator knows that none happened."""
        kept, generation = yield from self._kept_steps(record_id)
        begun = [item for item in kept if parts.is_of(generation, item) and "done" not in item]
        return [("Delete", {"Key": key(record_id, item["part"]["B"])}) for item in begun]

    def _forget_parts(self, verb: Swap, fence: int) -> Op[None]:
        """Remove what nobody can reach any more; what is left is swept with the record. Only of the
        attempt that has ended: by now somebody may own the record who has parts of its own.
        """
        queries = [self.parts(verb.id, parts.REQUEST + verb.token, "id")]
        if verb.fresh:
            queries.append(self.parts(verb.id, parts.STEP, "id"))
        leftover: list[bytes] = []
        for page in (yield queries):
            if not isinstance(page, StoreError | Denied):
                leftover += [item["part"]["B"] for item in page["Items"]]
        kept_from = parts.steps_since(fence)
        gone = [part for part in leftover if not part.startswith(parts.STEP) or part < kept_from]
        if gone:
            yield [self.call("delete_item", Key=key(verb.id, part)) for part in gone]

    # ---------------------------------------------------------------------------------- steps

    def _append_step(self, verb: AppendStep) -> Op[Done | Refused]:
        if len(parts.step_content(verb.step)) > parts.STEP_BYTES_MAX:
            raise StoreError(
                f"the result of step {verb.step.name!r} has {len(verb.step.result or b'')} bytes; "
                f"in DynamoDB at most {parts.STEP_BYTES_MAX} can be kept: keep where it is instead"
            )
        generation = verb.fence  # that of a first attempt; of others the refusal tells it
        for _ in range(INSERT_ROUNDS_MAX):
            denied = yield from self._try_step(verb, generation)
            if denied is None:
                return Done(verb.fence)
            code, found = denied.reasons[0]
            if code == "None":  # the step is there with its result, which stays
                [read] = yield from self.all([self.get(verb.id)])
                found = read.get("Item")
                if found is not None and owns(verb, found):
                    return Done(verb.fence)
            if found is None or not owns(verb, found):
                return (yield from self.refused(found))
            generation = items.number(found, "generation")
        raise StoreUnavailable(f"{self.table}: a step was neither kept nor refused")

    def _try_step(self, verb: AppendStep, generation: int) -> Op[Denied | None]:
        mark = Update()
        mark.equal(
            state=s(State.RUNNING),
            fence=n(verb.fence),
            token=b(verb.token),
            generation=n(generation),
        )
        mark.set(kept=items.KEPT, ttl=items.KEPT)
        step = parts.step_update(verb.step, verb.fence, next(self._numbers))
        part = parts.step_part(generation, verb.step.name)
        members = [
            ("Update", {"Key": key(verb.id), **mark.parameters(), **_ALL_OLD}),
            ("Update", {"Key": key(verb.id, part), **step.parameters()}),
            *(("Put", {"Item": item}) for item in parts.step_pieces(verb.id, part, verb.step)),
        ]
        return (yield from self.together(members, verb.token))

    def _kept_steps(self, record_id: bytes) -> Op[tuple[list[Item], int]]:
        """Steps of all generations, and the one that counts."""
        [read] = yield from self.all([self.get(record_id, None, "generation", "kept")])
        item = read.get("Item", {})
        if "kept" not in item:
            return [], 0
        found = yield from self.pages(self.parts(record_id, parts.STEP))
        return found, items.number(item, "generation")

    def _steps(self, verb: Steps) -> Op[list[Step]]:
        found, generation = yield from self._kept_steps(verb.id)
        return parts.steps_of(generation, found)

    # -------------------------------------------------------------------------------- looking

    def _find(self, verb: Find) -> Op[Record | None]:
        [read] = yield from self.all([self.get(verb.id)])
        return (yield from self.whole(read["Item"])) if "Item" in read else None

    def _peek(self, verb: Peek) -> Op[Glimpse | None]:
        shown = ("state", "fence", "beat", "token", "held", "lapsed")
        [read] = yield from self.all([self.get(verb.id, None, *shown)])
        if "Item" not in read:
            return None
        item = read["Item"]
        state, fence = State(item["state"]["S"]), items.number(item, "fence")
        if state is not State.RUNNING:
            return Glimpse(state, fence, 0.0)
        return Glimpse(state, fence, items.lease_left_s(verb.id, item, self.sightings))

    def _requested(self, verb: Requested) -> Op[bytes | None]:
        [read] = yield from self.all([self.get(verb.id, None, "request", "token")])
        item = read.get("Item", {})
        if "request" not in item:
            return None
        names = parts.piece_parts(parts.REQUEST, item["token"]["B"], items.number(item, "request"))
        pieces = yield from self.all([self.get(verb.id, name) for name in names])
        if not all("Item" in piece for piece in pieces):  # it has ended since
            return None
        return b"".join(piece["Item"]["data"]["B"] for piece in pieces)


def owns(verb: AppendStep, item: Item) -> bool:
    found = (item["state"]["S"], items.number(item, "fence"), item["token"]["B"])
    return found == (State.RUNNING, verb.fence, verb.token)


def transaction(members: Iterable[Item], token: str) -> Call:
    return Call(
        "transact_write_items", {"TransactItems": list(members), "ClientRequestToken": token}
    )


_VERBS: dict[type, Callable[[Verbs, Any], Op[Any]]] = {
    Insert: Verbs._insert,
    Swap: Verbs._swap,
    Find: Verbs._find,
    Peek: Verbs._peek,
    AppendStep: Verbs._append_step,
    Steps: Verbs._steps,
    Requested: Verbs._requested,
}
