"""Records on the Redis server that Sentinels name as the primary of a service.

They are asked whenever a connection is made, so after a failover the next connection leads to the
new primary. A server that says of itself that it is a replica is never used: whoever named it has
not heard the news yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from oncekey._core.op import Op, relay
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.checks import Examination, Sample
from oncekey.stores.redis.connection import Address, AsyncRoads, Endpoint, RedisError, Roads
from oncekey.stores.redis.store import RedisStore

T = TypeVar("T")


class SentinelStore(RedisStore):
    """Records on the primary of `service`, found through any of the Sentinels."""

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
        self._guide = replace(self.endpoint, options={**self.endpoint.options, **login})

    # A question goes to whatever server was the primary when the last connection was made: if it
    # is not any more, the answer is a refusal, or none.

    def perform(self, verbs: Sequence[Any]) -> Op[list[Any]]:
        return relay(super().perform(verbs), self._to_primary)

    def migrate(self) -> Op[list[str]]:
        return self._at_primary(super().migrate())

    def prepare(self) -> Op[None]:
        primary = yield from self._find()
        yield from relay(super().prepare(), lambda commands: (primary, commands))
        self._primary = primary

    def examine(self) -> Op[Examination]:
        return self._at_primary(super().examine())

    def now(self) -> Op[float | None]:
        return self._at_primary(super().now())

    def sample(self, limit: int) -> Op[Sample]:
        return self._at_primary(super().sample(limit))

    def _at_primary(self, op: Op[T]) -> Op[T]:
        """For whoever asks before anything was prepared."""
        if self._primary is None:
            self._primary = yield from self._find()
        return (yield from relay(op, self._to_primary))

    def _to_primary(self, commands: Any) -> Any:
        return self._primary, commands

    def _find(self) -> Op[Address]:
        """The primary, by the first Sentinel that knows it."""
        question = [("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)]
        reasons = []
        for sentinel in self._sentinels:  # which is replaced, never changed: others look as well
            try:
                (reply,) = yield sentinel, question
            except StoreUnavailable as error:
                reasons.append(str(error))
                continue
            if isinstance(reply, RedisError) or reply is None:
                reasons.append(f"{sentinel[0]}:{sentinel[1]} says {reply or 'that it knows none'}")
                continue
            # The next connection asks first whoever could answer this time.
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
        return (self._guide if address in self._sentinels else self.endpoint).at(address)

    def connect(self) -> Roads:
        return Roads(self._endpoint_at)

    async def aconnect(self) -> AsyncRoads:
        return AsyncRoads(self._endpoint_at)
