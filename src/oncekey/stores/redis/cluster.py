"""Records in a Redis Cluster: each on the node that holds its slot.

Which node that is, is known from CLUSTER SLOTS and put right by MOVED. Verbs for different nodes
travel apart, so a node that is down holds up only its own records. What a node refuses it has not
done; so a command that meets a slot or a primary on the move is simply asked again, elsewhere or a
little later, in a bounded number of rounds. A reply that is lost is told to the caller, as ever.

A primary whose replica has not taken over yet is not waited for: its records are unavailable, and
the next question finds out who holds them then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from oncekey._core.op import Op, Pause, relay
from oncekey._core.verbs import Verb
from oncekey.errors import Misuse, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.base import Durability
from oncekey.stores.checks import Examination
from oncekey.stores.redis import inspection
from oncekey.stores.redis.connection import (
    Address,
    AskError,
    AsyncRoads,
    ClusterDownError,
    MovedError,
    ReadOnlyError,
    RedisError,
    Roads,
    TryAgainError,
)
from oncekey.stores.redis.slots import SLOT_OF_BYTE, SLOTS, TAG_OF_BYTE, TAGS, SlotMap, slot_of
from oncekey.stores.redis.store import RedisStore, lane
from oncekey.stores.redis.verbs import Command

T = TypeVar("T")

PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""How long to wait after each round for a cluster that is about to change; then it is given up."""
_MARKS_MAX = 4


class _Unreachable(RedisError):
    """Instead of a reply: nothing was sent, because there is no connection to the node."""


_PASSING = (TryAgainError, ClusterDownError, ReadOnlyError)
_Routes = dict[int, tuple[Address, bool]]
"""For each command, by its place: the node to ask, and whether only because it said ASK."""


class ClusterStore(RedisStore):
    """Records in a Redis Cluster, of which some nodes are known."""

    name = "redis cluster"

    def __init__(self, seeds: Sequence[Address], **options: Any) -> None:
        """`options` are those of `RedisStore`, for every node."""
        super().__init__(**options)
        if {"{", "}"} & set(self.prefix):
            raise Misuse(f"prefix={self.prefix!r}: in a cluster it must not contain braces")
        if self.endpoint.options["db"]:
            raise Misuse("a cluster has only one database: use a prefix to keep applications apart")
        places = ",".join(f"{host}:{port}" for host, port in seeds)
        self._address = f"{self.endpoint.kind}+cluster://{places}"
        self._guides = deque(seeds)
        self._slots = SlotMap([seeds[0]] * SLOTS)  # until it is learnt: whoever is asked will tell
        self._met: dict[Address, Durability] = {}
        self._schema_checked = False

    # ------------------------------------------------------------------------ where things are

    def group(self, verb: Verb) -> Hashable:
        record_id = getattr(verb, "id", None)
        if record_id is None:
            return lane(verb)
        return lane(verb), self._slots.owners[SLOT_OF_BYTE[record_id[0]]]

    def key(self, record_id: bytes) -> str:
        return self._tagged(record_id[0], record_id.hex())

    def nodes(self) -> list[Any]:
        return self._slots.nodes()

    def lists(self, node: Any) -> list[str]:
        return [self._tagged(byte, "open") for byte in self._slots.bytes_of(node)]

    def _tagged(self, byte: int, name: str) -> str:
        """A key in the slot of the ids that begin with this byte."""
        return f"{self.prefix}:{{{TAG_OF_BYTE[byte]}}}/{name}"

    def _owner(self, command: Command) -> Address:
        return self._slots.owners[_slot(command)]

    # --------------------------------------------------------------------------- finding the way

    def _exchange(
        self, commands: list[Command], *, certain: bool, node: Address | None = None
    ) -> Op[list[Any]]:
        if node is not None:
            return (yield from self._at(node, self._served(commands, [])))
        replies: list[Any] = [None] * len(commands)
        routes: _Routes = {at: (self._owner(command), False) for at, command in enumerate(commands)}
        for pause_s in PAUSES_S:
            yield from self._round(commands, routes, replies, certain)
            routes = yield from self._detours(commands, routes, replies, pause_s)
            if not routes:
                break
        return replies

    def _round(
        self, commands: list[Command], routes: _Routes, replies: list[Any], certain: bool
    ) -> Op[None]:
        """Ask each node for its part."""
        parts: dict[tuple[Address, bool], list[int]] = {}
        for at, route in routes.items():
            parts.setdefault(route, []).append(at)
        for (node, asking), part in parts.items():
            found = yield from self._part([commands[at] for at in part], node, asking, certain)
            for at, reply in zip(part, found, strict=True):
                replies[at] = reply

    def _part(
        self, commands: list[Command], node: Address, asking: bool, certain: bool
    ) -> Op[list[Any]]:
        marks: list[str] = []
        if certain and self._wait_replicas:
            held = self._slots.bytes_of(node)[:_MARKS_MAX]
            marks = [self._tagged(byte, "mark") for byte in held]
            if not marks:  # it holds no slot yet where to write one
                return [TryAgainError(f"TRYAGAIN {node} gets its first slots")] * len(commands)
        if asking:
            commands = [part for command in commands for part in (("ASKING",), command)]
        try:
            replies = yield from self._at(node, self._served(commands, marks))
        except StoreUnavailable as error:
            if error.sent:
                raise
            return [_Unreachable(str(error))] * (len(commands) // (1 + asking))
        return replies[1::2] if asking else replies

    def _detours(
        self, commands: list[Command], routes: _Routes, replies: list[Any], pause_s: float
    ) -> Op[_Routes]:
        """Where to ask again what was refused because something is on the move."""
        kinds = {type(replies[at]) for at in routes}
        if any(issubclass(kind, (*_PASSING, _Unreachable)) for kind in kinds):
            if any(issubclass(kind, _PASSING) for kind in kinds):
                yield Pause(pause_s)
            try:
                yield from self._learn()
            except StoreUnavailable:
                return {}  # the refusals stand
        detours: _Routes = {}
        for at, (node, _) in routes.items():
            reply = replies[at]
            if isinstance(reply, AskError):
                told = reply.host or node[0], int(reply.port)
                if isinstance(reply, MovedError):
                    self._slots.owners[_slot(commands[at])] = told
                detours[at] = told, not isinstance(reply, MovedError)
            elif isinstance(reply, (*_PASSING, _Unreachable)):
                owner = self._owner(commands[at])
                if owner != node or not isinstance(reply, _Unreachable):
                    detours[at] = owner, False
        return detours

    def _at(self, node: Address, op: Op[T]) -> Op[T]:
        """Carry the operation out on one node."""
        yield from self._meet(node)
        try:
            return (yield from self._on(node, op))
        except StoreUnavailable:
            self._met.pop(node, None)  # it may come back as a replica
            raise

    def _judged(self, error: RedisError, *, sent: bool = False) -> StoreError:
        if isinstance(error, _Unreachable):
            return StoreUnavailable(str(error), sent=sent)
        return super()._judged(error, sent=sent)

    # ---------------------------------------------------------------------------------- fitness

    def prepare(self) -> Op[None]:
        yield from self._learn()
        failures = []
        for node in self.nodes():
            try:
                yield from self._meet(node)
            except StoreUnavailable as failure:  # its records are, the others need not be
                failures.append(failure)
        if len(failures) == len(self.nodes()):
            raise failures[0]
        if not self._schema_checked:
            yield from self._schema()
            self._schema_checked = True

    def migrate(self) -> Op[list[str]]:
        yield from self._learn()
        return (yield from super().migrate())

    def _schema(self) -> Op[int]:
        """Also make the lists, with an entry that keeps them: scripts only write what is there."""
        lists = [self._tagged(byte, "open") for byte in range(TAGS)]
        yield from self.ask_all([("ZADD", key, "+inf", "") for key in lists])
        return (yield from super()._schema())

    def _learn(self) -> Op[None]:
        """Ask for the slots: the first node that knows them all."""
        reasons = []
        for node in list(self._guides):
            self._guides.rotate(-1)  # not always the same: it may be cut off and not know it
            try:
                (reply,) = yield node, [("CLUSTER", "SLOTS")]
            except StoreUnavailable as error:
                reasons.append(str(error))
                continue
            if isinstance(reply, RedisError):
                raise self._no_cluster(node, reply)
            slots = SlotMap.read(reply, node)
            if slots is None:
                reasons.append(f"{node[0]}:{node[1]} does not know who holds each slot")
                continue
            self._slots = slots
            self._guides.extend(known for known in slots.nodes() if known not in self._guides)
            return
        raise StoreUnavailable(
            f"{self._address}: no node can tell where keys are: {'; '.join(reasons)}", sent=False
        )

    def _no_cluster(self, node: Address, error: RedisError) -> StoreError:
        if "cluster support disabled" in str(error):
            return StoreUnfit(f"{node[0]}:{node[1]} is not in a cluster: write redis:// for it")
        return self._judged(error)

    def _meet(self, node: Address) -> Op[None]:
        """Examine a node before anything is asked of it."""
        if node in self._met:
            return
        try:
            yield from self._on(node, self._examine())
        except StoreUnavailable as error:  # whatever it was, nothing else was sent
            raise StoreUnavailable(str(error), sent=False) from error
        self._met[node] = self.durability
        kept = self._met.values()
        self.durability = min(kept, key=lambda each: (each.store_crash, each.power_loss))

    def examine(self) -> Op[Examination]:
        yield from self._learn()
        looked = []
        for node in self.nodes():
            found = yield from self._on(node, inspection.look(self.prefix))
            looked.append((f"{node[0]}:{node[1]}", found))
        return inspection.examination(
            looked, (yield from self._noted_schema()), self._wait_replicas, self._address
        )

    def _noted_schema(self) -> Op[tuple[int, int] | None]:
        owner = self._owner(("HMGET", f"{self.prefix}:schema"))
        return self._on(owner, super()._noted_schema())

    def now(self) -> Op[float | None]:
        return self._on(self.nodes()[0], super().now())

    def _on(self, node: Address, op: Op[T]) -> Op[T]:
        return relay(op, lambda commands: (node, commands))

    def _check_role(self, info: Mapping[str, str]) -> None:
        if info.get("role", "master") != "master":
            raise StoreUnavailable(
                f"a node of {self._address} has just become a replica", sent=False
            )

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> Roads:
        return Roads(self.endpoint.at)

    async def aconnect(self) -> AsyncRoads:
        return AsyncRoads(self.endpoint.at)


def _slot(command: Command) -> int:
    """The slot of the one key that a command names."""
    return slot_of(command[3] if command[0] == "EVALSHA" else command[1])
