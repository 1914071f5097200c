"""A private Redis Cluster: three primaries with a replica each, or as many as are asked for."""

import functools
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import redis

from tests.servers.process import free_port
from tests.servers.redis import Redis

SLOTS = 16384
NODE_TIMEOUT_MS = 1500
_SETTLE_S_MAX = 60.0


def start_redis_cluster(primaries: int = 3, replicas: int = 1) -> "RedisCluster":
    """Start nodes and make a cluster of them; it is whole when this returns."""
    return RedisCluster(primaries, replicas)


class Node(Redis):
    """One node: the port of its bus is chosen, for ours plus 10000 may be none."""

    def __init__(self, password: str) -> None:
        super().__init__(password=password)
        self._settings = {
            "databases": 1,
            "cluster-enabled": "yes",
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "cluster-config-file": "nodes.conf",
        }

    def start(self) -> Self:
        self.bus_port = free_port()
        self._settings["cluster-port"] = self.bus_port
        return super().start()

    @functools.cached_property
    def client(self) -> Any:
        """To ask the node itself, whatever the others say."""
        return redis.Redis.from_url(self.url, socket_timeout=10)

    def close(self) -> None:
        self.client.close()
        super().close()

    @property
    def id(self) -> str:
        return str(self.client.execute_command("CLUSTER MYID").decode())

    @property
    def is_primary(self) -> bool:
        return bool(self.client.execute_command("ROLE")[0] == b"master")


class RedisCluster:
    """All nodes, those that were primaries in the beginning first."""

    def __init__(self, primaries: int, replicas: int) -> None:
        password = secrets.token_hex(8)
        self.password = password
        self.nodes: list[Node] = []
        try:
            for _ in range(primaries * (1 + replicas)):
                self.nodes.append(Node(password).start())
            self._join(primaries)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        places = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://:{self.password}@{places}"

    @property
    def version(self) -> str:
        return self.nodes[0].version

    @property
    def source(self) -> str:
        return self.nodes[0].source

    def primaries(self) -> list[Node]:
        """Those that hold slots now."""
        ports = {port for _, _, port in self._ranges()}
        return [node for node in self.nodes if node.port in ports]

    def owner(self, slot: int) -> Node:
        for first, last, port in self._ranges():
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise LookupError(slot)

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
            node.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------ while it runs

    def settle(self) -> None:
        """Wait until every node that runs sees the whole cluster, and every replica has its data.

        A replica that has not finished its first sync never takes over.
        """
        await_that(lambda: all(map(self._settled, self._alive())), "the cluster is not whole")

    def move(self, slot: int, target: Node) -> None:
        """Move a slot with all its keys, one by one, as the tools of Redis do."""
        source = self.owner(slot)
        if source is not target:
            self.begin_move(slot, source, target)
            while keys := source.client.execute_command("CLUSTER GETKEYSINSLOT", slot, 3):
                self.move_keys(source, target, keys)
            self.end_move(slot, source, target)

    def move_whole(self, slot: int, target: Node) -> None:
        """Move a slot at one stroke, as Valkey can since its release 9."""
        source = self.owner(slot)
        if source is not target:
            source.client.execute_command(
                *("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
            )
            await_that(lambda: self.owner(slot) is target, "the slot has not moved")

    def begin_move(self, slot: int, source: Node, target: Node) -> None:
        target.client.execute_command("CLUSTER SETSLOT", slot, "IMPORTING", source.id)
        source.client.execute_command("CLUSTER SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, source: Node, target: Node, keys: Sequence[Any]) -> None:
        source.client.execute_command(
            *("MIGRATE", "127.0.0.1", target.port, "", 0, 10_000),
            *("AUTH", self.password, "KEYS", *keys),
        )

    def end_move(self, slot: int, source: Node, target: Node) -> None:
        for node in (target, source):
            node.client.execute_command("CLUSTER SETSLOT", slot, "NODE", target.id)

    def _alive(self) -> list[Node]:
        return [node for node in self.nodes if node.running]

    def _ranges(self) -> list[tuple[int, int, int]]:
        """First slot, last slot and the port of the primary, as the first node alive sees it."""
        client = self._alive()[0].client
        return [(e[0], e[1], e[2][1]) for e in client.execute_command("CLUSTER SLOTS")]

    def _settled(self, node: Node) -> bool:
        try:
            whole: bool = node.client.execute_command("CLUSTER INFO")["cluster_state"] == "ok"
            info = node.client.info("replication")
        except redis.RedisError:
            return False
        synced: bool = info["role"] == "master" or info["master_link_status"] == "up"
        return whole and synced

    def _join(self, primaries: int) -> None:
        first, *others = self.nodes
        for number, node in enumerate(self.nodes[:primaries]):
            start, end = (SLOTS * n // primaries for n in (number, number + 1))
            node.client.execute_command("CLUSTER ADDSLOTSRANGE", start, end - 1)
            node.client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in others:
            first.client.execute_command("CLUSTER MEET", "127.0.0.1", node.port, node.bus_port)
        await_that(self._all_met, "the nodes do not know each other")
        for number, node in enumerate(self.nodes[primaries:]):
            node.client.execute_command("CLUSTER REPLICATE", self.nodes[number % primaries].id)
        self.settle()

    def _all_met(self) -> bool:
        def known(node: Node) -> int:
            return len(node.client.execute_command("CLUSTER NODES"))

        return all(known(node) == len(self.nodes) for node in self.nodes)


def await_that(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _SETTLE_S_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.05)
