"""Store records in a Redis Cluster: each on the node that holds its slot.

CLUSTER SLOTS says which node that is, and MOVED corrects it. Verbs for different nodes travel
separately, so a node that is down affects only its own records. A command that a node refused had
no effect, so a command that meets a slot or a primary in transition is simply retried elsewhere or
a little later, in a bounded number of rounds. A lost reply is reported to the caller, as in every
store.

The store does not wait for a replica to take over from a failed primary: its records are
unavailable, and the next query finds out which node holds them then.

Slots
    A cluster divides keys among 16384 slots by a checksum of the key, or of the text between its
    first braces, the *tag*. Keys that one script changes must share a slot, so a record and the
    list that may name it share a tag. There are 256 tags, one for each value of an id's first byte:
    enough to spread records over the nodes, few enough to query all lists at once. They are chosen
    so that their slots are spread evenly, because nodes hold ranges of slots.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from oncekey._core.op import Op, Pause, relay
from oncekey._core.verbs import Verb
from oncekey.errors import Misuse, StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.base import Durability
from oncekey.stores.checks import Examination
from oncekey.stores.redis import checks
from oncekey.stores.redis.connection import (
    Address,
    AskError,
    AsyncNodeConnections,
    ClusterDownError,
    MovedError,
    NodeConnections,
    ReadOnlyError,
    RedisError,
    TryAgainError,
)
from oncekey.stores.redis.store import RedisStore, group_of
from oncekey.stores.redis.verbs import Command

T = TypeVar("T")

# ------------------------------------------------------------------------------------------ slots

SLOTS = 16384
TAGS = 256


def slot_of(key: str) -> int:
    """Return the slot that the cluster computes for a key."""
    start = key.find("{")
    end = key.find("}", start + 1)
    if start >= 0 and end > start + 1:
        key = key[start + 1 : end]
    return crc_hqx(key.encode(), 0) % SLOTS


def _tags() -> list[str]:
    """Return, for each of 256 ranges of slots, the smallest number that falls into it as a tag.

    The tags are part of the stored keys: they must never change.
    """
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < TAGS:
        tags.setdefault(slot_of(str(number)) * TAGS // SLOTS, str(number))
        number += 1
    return [tags[share] for share in range(TAGS)]


TAG_OF_BYTE = _tags()
SLOT_OF_BYTE = [slot_of(tag) for tag in TAG_OF_BYTE]


class SlotMap:
    """The node that holds each slot, as far as known."""

    def __init__(self, owners: list[Address]) -> None:
        self.owners = owners

    @classmethod
    def read(cls, reply: Sequence[Any], asked: Address) -> SlotMap | None:
        """Parse the reply of CLUSTER SLOTS; None if the node does not know all slots.

        A node may omit its own host: then it is the one that was `asked`.
        """
        owners: list[Address | None] = [None] * SLOTS
        for first, last, (host, port, *_), *_replicas in reply:
            name = host.decode() if host else ""
            owner = (asked[0] if name in ("", "?") else name, int(port))
            owners[int(first) : int(last) + 1] = [owner] * (int(last) + 1 - int(first))
        known = [owner for owner in owners if owner is not None]
        return cls(known) if len(known) == SLOTS else None

    def nodes(self) -> list[Address]:
        """Return all nodes that hold records, in a stable order."""
        return sorted({self.owners[slot] for slot in SLOT_OF_BYTE})

    def first_bytes(self, node: Address) -> list[int]:
        """Return the first bytes of the ids whose records the node holds."""
        return [byte for byte, slot in enumerate(SLOT_OF_BYTE) if self.owners[slot] == node]


# ------------------------------------------------------------------------------------------ store

PAUSES_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses between rounds while the cluster is about to change; after the last one the store gives
up.
"""
_MARKS_MAX = 4


class _Unreachable(RedisError):
    """Stands for a reply: nothing was sent, because no connection to the node could be made."""


_TRANSIENT = (TryAgainError, ClusterDownError, ReadOnlyError)
_Routes = dict[int, tuple[Address, bool]]
"""Maps each command's index to the node to ask, and whether that node said ASK."""


class ClusterStore(RedisStore):
    """Keep records in a Redis Cluster, given some of its nodes."""

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
        self._known_nodes = deque(seeds)
        self._slots = SlotMap([seeds[0]] * SLOTS)  # a guess, until any node corrects it
        self._checked: dict[Address, Durability] = {}
        self._schema_checked = False

    @property
    def location(self) -> Hashable:
        """Compare several servers as they are named."""
        return self.name, repr(self), self.endpoint.options["db"]

    # --------------------------------------------------------------------------- keys and nodes

    def group(self, verb: Verb) -> Hashable:
        record_id = getattr(verb, "id", None)
        if record_id is None:
            return group_of(verb)
        return group_of(verb), self._slots.owners[SLOT_OF_BYTE[record_id[0]]]

    def key(self, record_id: bytes) -> str:
        return self._tagged_key(record_id[0], record_id.hex())

    def nodes(self) -> list[Any]:
        return self._slots.nodes()

    def open_lists(self, node: Any) -> list[str]:
        return [self._tagged_key(byte, "open") for byte in self._slots.first_bytes(node)]

    def _tagged_key(self, byte: int, name: str) -> str:
        """Return a key in the slot of the ids that begin with this byte."""
        return f"{self.prefix}:{{{TAG_OF_BYTE[byte]}}}/{name}"

    def _owner(self, command: Command) -> Address:
        return self._slots.owners[_slot_of_command(command)]

    # ---------------------------------------------------------------------------------- routing

    def _exchange(
        self, commands: list[Command], *, replicated: bool, node: Address | None = None
    ) -> Op[list[Any]]:
        if node is not None:
            return (yield from self._on_checked_node(node, self._ask_server(commands, [])))
        replies: list[Any] = [None] * len(commands)
        routes: _Routes = {at: (self._owner(command), False) for at, command in enumerate(commands)}
        for pause_s in PAUSES_S:
            yield from self._ask_nodes(commands, routes, replies, replicated)
            routes = yield from self._reroute(commands, routes, replies, pause_s)
            if not routes:
                break
        return replies

    def _ask_nodes(
        self, commands: list[Command], routes: _Routes, replies: list[Any], replicated: bool
    ) -> Op[None]:
        """Send each node its share of the commands and fill in the replies."""
        parts: dict[tuple[Address, bool], list[int]] = {}
        for at, route in routes.items():
            parts.setdefault(route, []).append(at)
        for (node, asking), part in parts.items():
            found = yield from self._ask_node(
                [commands[at] for at in part], node, asking, replicated
            )
            for at, reply in zip(part, found, strict=True):
                replies[at] = reply

    def _ask_node(
        self, commands: list[Command], node: Address, asking: bool, replicated: bool
    ) -> Op[list[Any]]:
        marks: list[str] = []
        if replicated and self._wait_replicas:
            held = self._slots.first_bytes(node)[:_MARKS_MAX]
            marks = [self._tagged_key(byte, "mark") for byte in held]
            if not marks:  # it holds no slot yet to write a mark in
                return [TryAgainError(f"TRYAGAIN {node} gets its first slots")] * len(commands)
        if asking:
            commands = [part for command in commands for part in (("ASKING",), command)]
        try:
            replies = yield from self._on_checked_node(node, self._ask_server(commands, marks))
        except StoreUnavailable as error:
            if error.sent:
                raise
            return [_Unreachable(str(error))] * (len(commands) // (1 + asking))
        return replies[1::2] if asking else replies

    def _reroute(
        self, commands: list[Command], routes: _Routes, replies: list[Any], pause_s: float
    ) -> Op[_Routes]:
        """Return new routes for commands refused because a slot or node is in transition."""
        kinds = {type(replies[at]) for at in routes}
        if any(issubclass(kind, (*_TRANSIENT, _Unreachable)) for kind in kinds):
            if any(issubclass(kind, _TRANSIENT) for kind in kinds):
                yield Pause(pause_s)
            try:
                yield from self._refresh_slots()
            except StoreUnavailable:
                return {}  # keep the refusals as replies
        new_routes: _Routes = {}
        for at, (node, _) in routes.items():
            reply = replies[at]
            if isinstance(reply, AskError):
                target = reply.host or node[0], int(reply.port)
                if isinstance(reply, MovedError):
                    self._slots.owners[_slot_of_command(commands[at])] = target
                new_routes[at] = target, not isinstance(reply, MovedError)
            elif isinstance(reply, (*_TRANSIENT, _Unreachable)):
                owner = self._owner(commands[at])
                if owner != node or not isinstance(reply, _Unreachable):
                    new_routes[at] = owner, False
        return new_routes

    def _on_checked_node(self, node: Address, op: Op[T]) -> Op[T]:
        """Carry out an operation on one node, which is checked first."""
        yield from self._check_node(node)
        try:
            return (yield from self._on_node(node, op))
        except StoreUnavailable:
            self._checked.pop(node, None)  # check it again: it may come back as a replica
            raise

    def _to_store_error(self, error: RedisError, *, sent: bool = False) -> StoreError:
        if isinstance(error, _Unreachable):
            return StoreUnavailable(str(error), sent=sent)
        return super()._to_store_error(error, sent=sent)

    # ----------------------------------------------------------------------------------- checks

    def prepare(self) -> Op[None]:
        yield from self._refresh_slots()
        failures = []
        for node in self.nodes():
            try:
                yield from self._check_node(node)
            except StoreUnavailable as failure:  # only its own records are unavailable
                failures.append(failure)
        if len(failures) == len(self.nodes()):
            raise failures[0]
        if not self._schema_checked:
            yield from self._check_schema()
            self._schema_checked = True

    def migrate(self) -> Op[list[str]]:
        yield from self._refresh_slots()
        return (yield from super().migrate())

    def _check_schema(self) -> Op[int]:
        """Also create the open lists, with an entry that keeps them: scripts only write to existing
        ones.
        """
        open_lists = [self._tagged_key(byte, "open") for byte in range(TAGS)]
        yield from self.ask_all([("ZADD", key, "+inf", "") for key in open_lists])
        return (yield from super()._check_schema())

    def _refresh_slots(self) -> Op[None]:
        """Read the slots from the first node that knows them all."""
        reasons = []
        for node in list(self._known_nodes):
            self._known_nodes.rotate(-1)  # rotate: a node may be cut off and not know it
            try:
                (reply,) = yield node, [("CLUSTER", "SLOTS")]
            except StoreUnavailable as error:
                reasons.append(str(error))
                continue
            if isinstance(reply, RedisError):
                raise self._not_a_cluster_error(node, reply)
            slots = SlotMap.read(reply, node)
            if slots is None:
                reasons.append(f"{node[0]}:{node[1]} does not know the owners of all slots")
                continue
            self._slots = slots
            self._known_nodes.extend(
                known for known in slots.nodes() if known not in self._known_nodes
            )
            return
        raise StoreUnavailable(
            f"{self._address}: no node knows where the keys are: {'; '.join(reasons)}", sent=False
        )

    def _not_a_cluster_error(self, node: Address, error: RedisError) -> StoreError:
        if "cluster support disabled" in str(error):
            return StoreUnfit(f"{node[0]}:{node[1]} is not in a cluster: write redis:// for it")
        return self._to_store_error(error)

    def _check_node(self, node: Address) -> Op[None]:
        """Check a node before its first use."""
        if node in self._checked:
            return
        try:
            yield from self._on_node(node, self._check_server())
        except StoreUnavailable as error:  # only the check was sent
            raise StoreUnavailable(str(error), sent=False) from error
        self._checked[node] = self.durability
        durabilities = self._checked.values()
        self.durability = min(durabilities, key=lambda each: (each.store_crash, each.power_loss))

    def examine(self) -> Op[Examination]:
        yield from self._refresh_slots()
        servers = []
        for node in self.nodes():
            found = yield from self._on_node(node, checks.inspect_server(self.prefix))
            servers.append((f"{node[0]}:{node[1]}", found))
        return checks.examination(
            servers, (yield from self._read_schema()), self._wait_replicas, self._address
        )

    def _read_schema(self) -> Op[tuple[int, int] | None]:
        owner = self._owner(("HMGET", f"{self.prefix}:schema"))
        return self._on_node(owner, super()._read_schema())

    def now(self) -> Op[float | None]:
        return self._on_node(self.nodes()[0], super().now())

    def _on_node(self, node: Address, op: Op[T]) -> Op[T]:
        return relay(op, lambda commands: (node, commands))

    def _check_role(self, info: Mapping[str, str]) -> None:
        if info.get("role", "master") != "master":
            raise StoreUnavailable(
                f"a node of {self._address} has just become a replica", sent=False
            )

    # ------------------------------------------------------------------------------ connections

    def connect(self) -> NodeConnections:
        return NodeConnections(self.endpoint.at)

    async def aconnect(self) -> AsyncNodeConnections:
        return AsyncNodeConnections(self.endpoint.at)


def _slot_of_command(command: Command) -> int:
    """Return the slot of the one key that a command names."""
    return slot_of(command[3] if command[0] == "EVALSHA" else command[1])
