"""Store records on the Redis server that Sentinels name as the primary of a service.

The Sentinels are queried for every new connection, so after a failover the next connection leads to
the new primary. A server that reports being a replica is never used: the Sentinel that named it has
outdated information.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from oncekey._core.op import Op, relay
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.checks import Examination, Sample
from oncekey.stores.redis.connection import (
    Address,
    AsyncNodeConnections,
    Endpoint,
    NodeConnections,
    RedisError,
)
from oncekey.stores.redis.store import RedisStore

T = TypeVar("T")


class SentinelStore(RedisStore):
    """Keep records on the primary of `service`, found through any of the Sentinels."""

    name = "redis sentinel"

    def __init__(
        self,
        sentinels: Sequence[Address],
        service: str,
        *,
        sentinel_username: str | None = None,
        sentinel_password: str | None = None,
        **options: Any,
    ) -> None:
        """`options` are those of `RedisStore`, for the server that is found."""
        if not service:
            raise Misuse("name the service that the Sentinels watch: redis+sentinel://host/name")
        self._sentinels = list(sentinels)
        self._service = service
        self._primary: Address | None = None
        super().__init__(**options)
        places = ",".join(f"{host}:{port}" for host, port in sentinels)
        self._address = f"{self.endpoint.kind}+sentinel://{places}/{service}"
        login = {"username": sentinel_username, "password": sentinel_password, "db": 0}
        self._sentinel_endpoint = replace(self.endpoint, options={**self.endpoint.options, **login})

    @property
    def location(self) -> Hashable:
        """Compare several servers as they are named."""
        return self.name, repr(self), self.endpoint.options["db"]

    # Commands go to the server that was the primary when the last connection was made. If it no
    # longer is, it refuses them or does not answer.

    def perform(self, verbs: Sequence[Any]) -> Op[list[Any]]:
        return relay(super().perform(verbs), self._address_to_primary)

    def migrate(self) -> Op[list[str]]:
        return self._at_primary(super().migrate())

    def prepare(self) -> Op[None]:
        primary = yield from self._find_primary()
        yield from relay(super().prepare(), lambda commands: (primary, commands))
        self._primary = primary

    def examine(self) -> Op[Examination]:
        return self._at_primary(super().examine())

    def now(self) -> Op[float | None]:
        return self._at_primary(super().now())

    def sample(self, limit: int) -> Op[Sample]:
        return self._at_primary(super().sample(limit))

    def _at_primary(self, op: Op[T]) -> Op[T]:
        """Carry out an operation that needs no prepared connection."""
        if self._primary is None:
            self._primary = yield from self._find_primary()
        return (yield from relay(op, self._address_to_primary))

    def _address_to_primary(self, commands: Any) -> Any:
        return self._primary, commands

    def _find_primary(self) -> Op[Address]:
        """Return the primary named by the first Sentinel that knows it."""
        question = [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)]
        reasons = []
        for sentinel in self._sentinels:  # replaced, never mutated: other threads iterate over it
            try:
                (reply,) = yield sentinel, question
            except StoreUnavailable as error:
                reasons.append(str(error))
                continue
            if isinstance(reply, RedisError) or reply is None:
                reasons.append(f"{sentinel[0]}:{sentinel[1]} says {reply or 'it knows no primary'}")
                continue
            # The next connection tries the Sentinel first that answered this time.
            others = [other for other in self._sentinels if other != sentinel]
            self._sentinels = [sentinel, *others]
            host, port = reply
            return host.decode(), int(port)
        why = "; ".join(reasons)
        raise StoreUnavailable(f"no Sentinel names a primary of {self._service}: {why}", sent=False)

    def _check_role(self, info: Mapping[str, str]) -> None:
        if info.get("role", "master") != "master":
            raise StoreUnavailable(
                f"the primary of {self._service} has become a replica: a failover is under way",
                sent=False,
            )

    # ------------------------------------------------------------------------------ connections

    def _endpoint_at(self, address: Address) -> Endpoint:
        return (self._sentinel_endpoint if address in self._sentinels else self.endpoint).at(
            address
        )

    def connect(self) -> NodeConnections:
        return NodeConnections(self._endpoint_at)

    async def aconnect(self) -> AsyncNodeConnections:
        return AsyncNodeConnections(self._endpoint_at)
