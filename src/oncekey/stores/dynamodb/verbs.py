"""Verbs that name a record, on DynamoDB: operations that yield calls. Pure.

Every write is one conditional request, and a failed condition returns the item found, so the loser
needs no second read. Steps and kept requests are items of their own; they are written with their
record in one transaction.

A take-over fails unless this process has watched the record for a whole lease, and then it presents
the beat that it observed: see `leases`.
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
from oncekey.stores.dynamodb.leases import LeaseObserver
from oncekey.stores.dynamodb.server_date import ServerClock
from oncekey.stores.dynamodb.statements import (
    ApiCall,
    ErrorResponse,
    Item,
    Update,
    b,
    key,
    n,
    projection,
    s,
)

TRANSACTION_MAX = 100
"""The most items that one transaction can write."""
_ALL_OLD = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}

ToStoreError = Callable[[ErrorResponse], StoreError]


class Verbs:
    """The verbs of one table. `to_store_error` translates errors that no verb expects."""

    def __init__(
        self,
        table: str,
        server_clock: ServerClock,
        observer: LeaseObserver,
        to_store_error: ToStoreError,
    ) -> None:
        self.table = table
        self.server_clock = server_clock
        self.observer = observer
        self._to_store_error = to_store_error
        self._numbers = itertools.count(1)

    def perform(self, verb: Any) -> Op[Any]:
        return _VERBS[type(verb)](self, verb)

    # ------------------------------------------------------------------------------------ calls

    def call(self, method: str, **parameters: Any) -> ApiCall:
        return ApiCall(method, {"TableName": self.table, **parameters})

    def get(self, record_id: bytes, part: bytes | None = None, *only: str) -> ApiCall:
        """Return a consistent read of one item."""
        place = key(record_id) if part is None else key(record_id, part)
        shown = projection(only) if only else {}
        return self.call("get_item", Key=place, ConsistentRead=True, **shown)

    def ask_all(self, calls: Sequence[ApiCall]) -> Op[list[Item]]:
        """Return the responses; raise if any call failed."""
        answers: list[Item] = []
        if calls:
            for answer in (yield list(calls)):
                if isinstance(answer, StoreError):
                    raise answer
                if isinstance(answer, ErrorResponse):
                    raise self._to_store_error(answer)
                answers.append(answer)
        return answers

    def ask_one(self, call: ApiCall) -> Op[Item | ErrorResponse]:
        """Return the response, or the error if its condition failed; raise any other error."""
        [answer] = yield [call]
        return self._raise_unexpected(answer)

    def count_done(self, calls: Sequence[ApiCall]) -> Op[int]:
        """Return how many calls were carried out; a failed condition is not an error."""
        answers = yield list(calls)
        return sum(
            not isinstance(self._raise_unexpected(answer), ErrorResponse) for answer in answers
        )

    def _raise_unexpected(self, answer: Item | ErrorResponse | StoreError) -> Item | ErrorResponse:
        """Raise any error except a failed condition."""
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, ErrorResponse) and not answer.is_condition_failure:
            raise self._to_store_error(answer)
        return answer

    def transact(
        self, members: Sequence[tuple[str, Item]], token: bytes
    ) -> Op[ErrorResponse | None]:
        """Carry out writes in one transaction; if a condition failed, return the error, whose
        `reasons` say which one.

        The token makes the transaction safe to repeat: DynamoDB recognises it for ten minutes.
        """
        named = [{kind: {"TableName": self.table, **write}} for kind, write in members]
        [answer] = yield [transact_call(named, self.request_token(token))]
        if isinstance(answer, StoreError):
            raise answer
        if isinstance(answer, ErrorResponse):
            codes = {code for code, _ in answer.reasons} - {"None"}
            if codes != {"ConditionalCheckFailed"}:
                raise self._to_store_error(answer)
            return answer
        return None

    def request_token(self, token: bytes) -> str:
        """Return a token unique to this question; `token` is the attempt's own random token."""
        asked = f"{os.getpid()} {next(self._numbers)} {self.server_clock.monotonic()}".encode()
        return hashlib.sha256(token + asked).hexdigest()[:36]

    def pages(self, query: ApiCall) -> Op[list[Item]]:
        """Return all items of a query, page by page."""
        found: list[Item] = []
        while True:
            [page] = yield from self.ask_all([query])
            found += page["Items"]
            if "LastEvaluatedKey" not in page:
                return found
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
            query = ApiCall(query.method, {**query.parameters, **start})

    def parts(self, record_id: bytes, kind: bytes, *only: str) -> ApiCall:
        """Return the query for all parts of a kind."""
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

    def full_record(self, item: Item) -> Op[Record]:
        """Return the record, including a body that is stored in pieces."""
        for _ in range(INSERT_ROUNDS_MAX):
            if "body_pieces" not in item:
                return self.record(item)
            record_id, digest = item["id"]["B"], item["body_digest"]["B"]
            names = parts.piece_keys(parts.BODY, digest, items.read_int(item, "body_pieces"))
            pieces = yield from self.ask_all([self.get(record_id, name) for name in names])
            if all("Item" in piece for piece in pieces):
                body = b"".join(piece["Item"]["data"]["B"] for piece in pieces)
                return self.record(item, body)
            [again] = yield from self.ask_all([self.get(record_id)])  # it changed or vanished since
            if item == again.get("Item", item):
                break
            item = again["Item"]
        raise CorruptRecord(f"pieces of the answer of {item['id']['B'].hex()} are missing")

    def record(self, item: Item, body: bytes | None = None) -> Record:
        return items.record(item, self.server_clock.now(), self.observer, body)

    def refusal(self, item: Item | None) -> Op[Refused]:
        return Refused(None if item is None else (yield from self.full_record(item)))

    # --------------------------------------------------------------------------------- insert

    def _insert(self, verb: Insert) -> Op[Inserted | Found]:
        claim = verb.claim
        for _ in range(INSERT_ROUNDS_MAX):
            fence = self.server_clock.fence()
            put = {
                "Item": items.new_item(
                    claim, fence, self.server_clock.now(), self.server_clock.latest()
                ),
                "ConditionExpression": "attribute_not_exists(id)",
                **_ALL_OLD,
            }
            if claim.request is None:
                answer = yield from self.ask_one(self.call("put_item", **put))
                if not isinstance(answer, ErrorResponse):
                    return Inserted(fence)
                found = answer.item
            else:
                members = [("Put", put), *self._request_puts(claim)]
                error = yield from self.transact(members, claim.token)
                if error is None:
                    return Inserted(fence)
                found = error.reasons[0][1]
            if found is not None:
                return Found((yield from self.full_record(found)))
        raise StoreUnavailable(f"{self.table}: a record could neither be inserted nor found")

    def _request_puts(self, claim: Claim) -> list[tuple[str, Item]]:
        if claim.request is None:
            return []
        return [("Put", {"Item": item}) for item in parts.request_items(claim)]

    # ----------------------------------------------------------------------------------- swap

    def _swap(self, verb: Swap) -> Op[Done | Refused]:
        now, latest = self.server_clock.now(), self.server_clock.latest()
        fence = self.server_clock.fence(verb.fence) if verb.raise_fence else verb.fence
        update = items.swap_update(verb, fence, now, latest)
        if verb.when is When.EXPIRED:
            update.only_if(f"{update.name('expires')} <= {update.bind('now', n(now))}")
        elif verb.when is not When.ANY:
            beat = self._observed_beat(verb)
            if beat is None:
                [found] = yield from self.ask_all([self.get(verb.id)])
                return (yield from self.refusal(found.get("Item")))
            update.equal(beat=n(beat))
        yield from self._put_body(verb, latest)
        return (yield from self._write_swap(verb, update, fence))

    def _observed_beat(self, verb: Swap) -> int | None:
        """Return the beat at which this process observed that the swap is due; None if it did
        not.
        """
        if verb.when is When.LAPSED:
            return self.observer.lapsed_beat(verb.id, verb.fence, verb.token)
        return self.observer.overlong_beat(verb.id, verb.fence, verb.token, verb.lease_s or 0.0)

    def _put_body(self, verb: Swap, latest: int) -> Op[None]:
        """Write the pieces of a large body before the record refers to them. A late writer of the
        same pieces does not shorten their time to live.
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
        yield from self.count_done(puts)

    def _write_swap(self, verb: Swap, update: Update, fence: int) -> Op[Done | Refused]:
        beside: list[tuple[str, Item]] = []
        if verb.claim is not None:
            beside = self._request_puts(verb.claim)
        if verb.state is State.UNKNOWN and verb.to is State.RELEASED:
            beside = yield from self._begun_steps(verb.id)
        write = {"Key": key(verb.id), **update.parameters(), **_ALL_OLD}
        if beside:
            members = [("Update", write), *beside[: TRANSACTION_MAX - 1]]
            error = yield from self.transact(members, verb.new_token or verb.token)
            if error is not None:
                return (yield from self.refusal(error.reasons[0][1]))
            old: Item = {"kept": items.NO_TTL}
        else:
            if not (verb.to is State.RUNNING and verb.claim is None):
                write["ReturnValues"] = "ALL_OLD"
            answer = yield from self.ask_one(self.call("update_item", **write))
            if isinstance(answer, ErrorResponse):
                return (yield from self.refusal(answer.item))
            old = answer.get("Attributes", {})
        if "kept" in old and ("request" in old or verb.claim is not None):
            yield from self._forget_parts(verb, fence)
        return Done(fence)

    def _begun_steps(self, record_id: bytes) -> Op[list[tuple[str, Item]]]:
        """Return the removal of steps that were only begun: the operator knows that none of them
        happened.
        """
        kept, generation = yield from self._kept_steps(record_id)
        begun = [
            item for item in kept if parts.is_of_generation(generation, item) and "done" not in item
        ]
        return [("Delete", {"Key": key(record_id, item["part"]["B"])}) for item in begun]

    def _forget_parts(self, verb: Swap, fence: int) -> Op[None]:
        """Remove parts that are no longer reachable; leftovers are swept with the record. Remove
        only parts of the attempt that has ended: the record may have a new owner with parts of its
        own.
        """
        queries = [self.parts(verb.id, parts.REQUEST + verb.token, "id")]
        if verb.fresh:
            queries.append(self.parts(verb.id, parts.STEP, "id"))
        leftover: list[bytes] = []
        for page in (yield queries):
            if not isinstance(page, StoreError | ErrorResponse):
                leftover += [item["part"]["B"] for item in page["Items"]]
        kept_from = parts.first_step_key(fence)
        gone = [part for part in leftover if not part.startswith(parts.STEP) or part < kept_from]
        if gone:
            yield [self.call("delete_item", Key=key(verb.id, part)) for part in gone]

    # ---------------------------------------------------------------------------------- steps

    def _append_step(self, verb: AppendStep) -> Op[Done | Refused]:
        if len(parts.step_content(verb.step)) > parts.STEP_BYTES_MAX:
            raise StoreError(
                f"the result of step {verb.step.name!r} has {len(verb.step.result or b'')} bytes; "
                f"in DynamoDB at most {parts.STEP_BYTES_MAX} can be stored: store a reference "
                "instead"
            )
        generation = verb.fence  # right for a first attempt; a refusal says the others
        for _ in range(INSERT_ROUNDS_MAX):
            error = yield from self._try_step(verb, generation)
            if error is None:
                return Done(verb.fence)
            code, found = error.reasons[0]
            if code == "None":  # the step has a result, which stays
                [read] = yield from self.ask_all([self.get(verb.id)])
                found = read.get("Item")
                if found is not None and is_owner(verb, found):
                    return Done(verb.fence)
            if found is None or not is_owner(verb, found):
                return (yield from self.refusal(found))
            generation = items.read_int(found, "generation")
        raise StoreUnavailable(f"{self.table}: a step was neither stored nor refused")

    def _try_step(self, verb: AppendStep, generation: int) -> Op[ErrorResponse | None]:
        mark = Update()
        mark.equal(
            state=s(State.RUNNING),
            fence=n(verb.fence),
            token=b(verb.token),
            generation=n(generation),
        )
        mark.set(kept=items.NO_TTL, ttl=items.NO_TTL)
        step = parts.step_update(verb.step, verb.fence, next(self._numbers))
        part = parts.step_key(generation, verb.step.name)
        members = [
            ("Update", {"Key": key(verb.id), **mark.parameters(), **_ALL_OLD}),
            ("Update", {"Key": key(verb.id, part), **step.parameters()}),
            *(("Put", {"Item": item}) for item in parts.step_pieces(verb.id, part, verb.step)),
        ]
        return (yield from self.transact(members, verb.token))

    def _kept_steps(self, record_id: bytes) -> Op[tuple[list[Item], int]]:
        """Return the steps of all generations, and the current generation."""
        [read] = yield from self.ask_all([self.get(record_id, None, "generation", "kept")])
        item = read.get("Item", {})
        if "kept" not in item:
            return [], 0
        found = yield from self.pages(self.parts(record_id, parts.STEP))
        return found, items.read_int(item, "generation")

    def _steps(self, verb: Steps) -> Op[list[Step]]:
        found, generation = yield from self._kept_steps(verb.id)
        return parts.steps_of(generation, found)

    # ------------------------------------------------------------------------------------ reads

    def _find(self, verb: Find) -> Op[Record | None]:
        [read] = yield from self.ask_all([self.get(verb.id)])
        return (yield from self.full_record(read["Item"])) if "Item" in read else None

    def _peek(self, verb: Peek) -> Op[Glimpse | None]:
        shown = ("state", "fence", "beat", "token", "held", "lapsed")
        [read] = yield from self.ask_all([self.get(verb.id, None, *shown)])
        if "Item" not in read:
            return None
        item = read["Item"]
        state, fence = State(item["state"]["S"]), items.read_int(item, "fence")
        if state is not State.RUNNING:
            return Glimpse(state, fence, 0.0)
        return Glimpse(state, fence, items.lease_left_s(verb.id, item, self.observer))

    def _request(self, verb: Requested) -> Op[bytes | None]:
        [read] = yield from self.ask_all([self.get(verb.id, None, "request", "token")])
        item = read.get("Item", {})
        if "request" not in item:
            return None
        names = parts.piece_keys(parts.REQUEST, item["token"]["B"], items.read_int(item, "request"))
        pieces = yield from self.ask_all([self.get(verb.id, name) for name in names])
        if not all("Item" in piece for piece in pieces):  # the attempt has ended since
            return None
        return b"".join(piece["Item"]["data"]["B"] for piece in pieces)


def is_owner(verb: AppendStep, item: Item) -> bool:
    found = (item["state"]["S"], items.read_int(item, "fence"), item["token"]["B"])
    return found == (State.RUNNING, verb.fence, verb.token)


def transact_call(members: Iterable[Item], token: str) -> ApiCall:
    return ApiCall(
        "transact_write_items", {"TransactItems": list(members), "ClientRequestToken": token}
    )


_VERBS: dict[type, Callable[[Verbs, Any], Op[Any]]] = {
    Insert: Verbs._insert,
    Swap: Verbs._swap,
    Find: Verbs._find,
    Peek: Verbs._peek,
    AppendStep: Verbs._append_step,
    Steps: Verbs._steps,
    Requested: Verbs._request,
}
