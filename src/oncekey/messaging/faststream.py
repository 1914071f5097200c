"""FastStream: subscribers that run once per message, and the outbox published through a broker.

    runtime = oncekey.Runtime("postgresql://…")
    broker = RabbitBroker(url, middlewares=[OnceMiddleware(runtime)])

For the brokers of RabbitMQ, NATS, Kafka and Redis. The message is acknowledged after the handler's
result is recorded. What is delivered again is acknowledged without running, and what the handler
returned the first time is returned again, so that a reply that was lost is sent after all.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from oncekey._core import key as keys
from oncekey._core.key import short_hash
from oncekey._core.message import Message
from oncekey._core.policy import Policy, Verdict
from oncekey._engine import attempt as attempts
from oncekey._engine.operation import must_be_runtime
from oncekey._engine.runtime import Runtime
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.messaging._inbox import Busy, Duplicate, Handled, Inbox, Rejected, Released, Unknown

try:
    from faststream import AckPolicy, BaseMiddleware, Response
    from faststream.exceptions import AckMessage, NackMessage, RejectMessage
    from faststream.message import StreamMessage
except ModuleNotFoundError as error:
    _told = f"{error}: pip install 'oncekey[faststream]'"
    raise ModuleNotFoundError(_told, name=error.name) from error

MessageId = Callable[[StreamMessage[Any]], str | None]
Handler = Callable[[StreamMessage[Any]], Awaitable[Any]]

PAUSE_S_MAX = 1.0
"""How long a message is held before it is given back to a broker that delivers it at once."""

_log = logging.getLogger("oncekey")


class OnceMiddleware:
    """Give one to a broker or a router: each of its subscribers runs once per message id.

    `message_id` finds the id in a message; without it, it is the broker's own (`own_id`). `name`
    names the inbox of a subscriber; without it, that is made of its function's name and its queue
    or topic, and messages that are delivered again after either was renamed run again.
    """

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        if "context" in settings:  # FastStream calls the class, for a message
            raise Misuse(
                "middlewares=[OnceMiddleware] names the class: make one, "
                "middlewares=[OnceMiddleware(runtime)]"
            )
        return super().__new__(cls)

    def __init__(
        self,
        runtime: Runtime,
        *,
        policy: Policy | None = None,
        message_id: MessageId | None = None,
        name: Callable[[Any], str] | None = None,
    ) -> None:
        must_be_runtime("OnceMiddleware", runtime)
        self._runtime = runtime
        self._policy = policy
        self._message_id = message_id or own_id
        self._name = name or inbox_name
        self._inboxes: dict[str, Inbox] = {}
        self._warned: set[str] = set()

    def __call__(self, msg: Any, /, *, context: Any) -> BaseMiddleware:
        """For FastStream: the middleware of one message."""
        return _Once(self, msg, context=context)

    async def handle(self, subscriber: Any, handler: Handler, message: StreamMessage[Any]) -> Any:
        """Run the handler unless it ran before; what it returned. Else tell FastStream what to do
        with the message, by the exceptions that it has for that.
        """
        name = self._name(subscriber)
        policy = getattr(subscriber, "ack_policy", None)
        if policy is AckPolicy.ACK_FIRST:
            self._warn(name)
        known_by = self._message_id(message)
        if not known_by:
            raise Misuse(_NO_ID.format(name=name))
        _check_once(name, known_by)
        settle = _Settle(message, is_manual=policy is AckPolicy.MANUAL)
        work = _Work(handler, message)
        try:
            outcome = await self._inbox(name).handle(
                known_by, work, payload=message.body if isinstance(message.body, bytes) else b""
            )
        except StoreUnavailable as error:
            _log.warning("%s: a message is put off: %s", name, error)
            raise await settle.later(PAUSE_S_MAX) from error
        match outcome:
            case Handled():
                return work.ended()
            case Duplicate(result):
                await settle.done()
                return result
            case Busy(retry_after_s):
                raise await settle.later(retry_after_s)
            case Released():
                raise await settle.later(PAUSE_S_MAX)
            case Unknown(problem) | Rejected(problem):
                key = short_hash(str(keys.derive(known_by)))  # as `oncekey list` shows it
                _log.error("%s: message key=%s is rejected: %s", name, key, problem.detail)
                raise await settle.never()

    def _inbox(self, name: str) -> Inbox:
        inbox = self._inboxes.get(name)
        if inbox is None:
            inbox = self._inboxes[name] = Inbox(self._runtime, name=name, policy=self._policy)
        return inbox

    def _warn(self, name: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            _log.error(
                "%s acknowledges a message before it runs: if the process dies, the message is "
                "lost. Write ack_policy=AckPolicy.NACK_ON_ERROR in its subscriber",
                name,
            )


def _check_once(name: str, known_by: str) -> None:
    """A misuse, if another of these has this very message in hand: it would wait for itself, be
    given back, and delivered again and again.
    """
    around = attempts.current_or_none()
    if around is not None and (around.operation, around.key) == (name, keys.derive(known_by)):
        raise Misuse(
            f"{name} is guarded twice, by one OnceMiddleware within another: give one to the "
            "broker, or to its routers"
        )


class _Once(BaseMiddleware):
    def __init__(self, once: OnceMiddleware, msg: Any, /, *, context: Any) -> None:
        super().__init__(msg, context=context)
        self._once = once

    async def consume_scope(self, call_next: Handler, msg: StreamMessage[Any]) -> Any:
        return await self._once.handle(self.context.get("handler_"), call_next, msg)


class _Work:
    """A handler as the inbox runs it: a result that JSON can keep, and the real one beside it."""

    def __init__(self, handler: Handler, message: StreamMessage[Any]) -> None:
        self._handler = handler
        self._message = message
        self._result: Any = None
        self._acked: AckMessage | None = None

    async def __call__(self) -> Any:
        try:
            self._result = await self._handler(self._message)
        except AckMessage as done:  # how a handler says that it is finished
            self._acked = done
        except NackMessage:  # or that it is not, and is to have it again
            attempt = attempts.current()
            if attempt.verdict is not Verdict.UNKNOWN:
                attempt.transient()
            raise
        kept = self._result.body if isinstance(self._result, Response) else self._result
        return kept.model_dump(mode="json") if hasattr(kept, "model_dump") else kept

    def ended(self) -> Any:
        """As the handler itself ended."""
        if self._acked is not None:
            raise self._acked
        return self._result


class _Settle:
    """What to tell the broker. FastStream does it by an exception, except where the subscriber's
    `ack_policy` is MANUAL and the handler, which does not run, would have to.
    """

    def __init__(self, message: StreamMessage[Any], *, is_manual: bool) -> None:
        self._message = message
        self._is_manual = is_manual

    async def done(self) -> None:
        if self._is_manual:
            await self._message.ack()

    async def later(self, delay_s: float) -> NackMessage:
        options = {}
        if _is(self._message, "faststream.nats.message", "NatsMessage"):
            options["delay"] = delay_s
        else:
            await asyncio.sleep(min(delay_s, PAUSE_S_MAX))
        if self._is_manual:
            await self._message.nack(**options)
        return NackMessage(**options)

    async def never(self) -> RejectMessage:
        if self._is_manual:
            await self._message.reject()
        return RejectMessage()


# ------------------------------------------------------------------------- names and ids

_NO_ID = (
    "{name}: this message has no id to know it by. Have its producer set one (message_id= for "
    "RabbitMQ, else a header message_id), or pass OnceMiddleware(message_id=…), a function that "
    "makes one of what the message is about"
)


def inbox_name(subscriber: Any) -> str:
    """`ship of orders`: the subscriber's function, and where its messages come from."""
    where = subscriber.get_log_context(None)
    places = [text for name, text in where.items() if text and name != "message_id"]
    return f"{'|'.join(call.name for call in subscriber.calls)} of {'/'.join(places)}"


def own_id(message: StreamMessage[Any]) -> str | None:
    """The id that the producer gave a message; else its place, where the broker has one that stays
    the same when it is delivered again: Kafka, JetStream, Redis streams.

    Not `message.message_id`: where there is none, FastStream makes a new one for each delivery.
    """
    raw = message.raw_message
    if isinstance(raw, list | tuple) or len(message.batch_headers) > 1:
        raise Misuse(
            "a batch has no id of its own: subscribe without batch=True, or give each message of "
            "it to an oncekey.messaging.Inbox"
        )
    if _is(message, "faststream.rabbit.message", "RabbitMessage"):
        own: str | None = raw.message_id
        return own or _header(message)
    return _header(message) or _place(message, raw)


def _header(message: StreamMessage[Any]) -> str | None:
    headers = {name.lower(): text for name, text in message.headers.items()}
    return headers.get("message_id") or headers.get("nats-msg-id")


def _place(message: StreamMessage[Any], raw: Any) -> str | None:
    """With the time at which it was put there: whatever is made anew, or falls back on a replica
    that lacks the newest, gives its places out again.
    """
    if _is(message, "faststream.kafka.message", "KafkaMessage"):
        return f"{raw.topic}/{raw.partition}/{raw.offset}/{raw.timestamp}"
    if _is(message, "faststream.confluent.message", "KafkaMessage"):
        return f"{raw.topic()}/{raw.partition()}/{raw.offset()}/{raw.timestamp()[1]}"
    if _is(message, "faststream.redis.message", "RedisStreamMessage"):
        return f"{raw['channel']}/{raw['message_ids'][0].decode()}"
    if _is(message, "faststream.nats.message", "NatsMessage") and raw.reply.startswith("$JS.ACK."):
        put_at = raw.metadata.timestamp.isoformat()
        return f"{raw.metadata.stream}/{raw.metadata.sequence.stream}/{put_at}"
    return None


def _is(given: Any, module: str, name: str) -> bool:
    """Whether it is of a class of a broker's package, which only who uses that broker imports."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(given, getattr(imported, name, ()))


# ------------------------------------------------------------------------------ publishing


def publish_to(broker: Any, **options: Any) -> Callable[[Message], Awaitable[None]]:
    """A `publish` function for `Publisher`: the topic is a queue of RabbitMQ, a subject of NATS, a
    topic of Kafka, a stream of Redis. `options` go to the broker's `publish`: `exchange=` for
    RabbitMQ (the topic is then the routing key), `stream=` for NATS, which needs it.
    """
    if _is(broker, "faststream.rabbit", "RabbitBroker"):
        return _to_rabbit(broker, options)
    if _is(broker, "faststream.nats", "NatsBroker"):
        return _to_nats(broker, options)
    if _is(broker, "faststream.kafka", "KafkaBroker"):
        return _to_kafka(broker, options)
    if _is(broker, "faststream.redis", "RedisBroker"):
        return _to_redis(broker, options)
    raise Misuse(
        f"publish_to(…) takes a RabbitBroker, NatsBroker, KafkaBroker or RedisBroker, not a "
        f"{type(broker).__name__}"
    )


def _headers(message: Message) -> dict[str, str]:
    return {**message.headers, "message_id": message.id}


@contextmanager
def _outage(raised: tuple[type[Exception], ...]) -> Iterator[None]:
    """What a client raises while its broker is away, or takes nothing from anybody, is told as a
    `Publisher` knows it: taken for a message's own fault, it would have it parked.
    """
    try:
        yield
    except raised as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error


def _named(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Exceptions of a broker's client: it is imported where there is such a broker."""
    return tuple(getattr(sys.modules[module], name) for name in names)


def _to_rabbit(broker: Any, options: dict[str, Any]) -> Callable[[Message], Awaitable[None]]:
    where = "routing_key" if "exchange" in options else "queue"
    away = _named("aiormq.exceptions", "ChannelInvalidStateError")  # until it is connected again

    async def publish(message: Message) -> None:
        with _outage(away):
            confirmed = await broker.publish(
                message.payload,
                headers=dict(message.headers),
                message_id=message.id,
                correlation_id=message.id,
                content_type=message.headers.get("content-type"),
                persist=True,
                **{where: message.topic},
                **options,
            )
        if type(confirmed).__name__ != "Ack":
            raise LookupError(f"no queue takes what is published to {message.topic!r}")

    return publish


def _to_nats(broker: Any, options: dict[str, Any]) -> Callable[[Message], Awaitable[None]]:
    if not options.get("stream"):
        raise Misuse(
            "publish_to(NatsBroker(…), stream='shop'): without a stream NATS does not say whether "
            "it has a message, and may lose it"
        )
    away = _named("nats.errors", "ConnectionClosedError", "OutboundBufferLimitError")
    away += _named("nats.js.errors", "ServiceUnavailableError")  # also where a stream is full

    async def publish(message: Message) -> None:
        headers = {**_headers(message), "Nats-Msg-Id": message.id}
        with _outage(away):
            await broker.publish(
                message.payload,
                message.topic,
                headers=headers,
                correlation_id=message.id,
                **options,
            )

    return publish


def _to_kafka(broker: Any, options: dict[str, Any]) -> Callable[[Message], Awaitable[None]]:
    errors = vars(sys.modules["aiokafka.errors"])
    passing = [name for name, kind in errors.items() if getattr(kind, "retriable", False)]
    away = _named("aiokafka.errors", "KafkaTimeoutError", *passing)

    async def publish(message: Message) -> None:
        with _outage(away):
            await broker.publish(
                message.payload,
                message.topic,
                key=None if message.key is None else message.key.encode(),
                headers=_headers(message),
                correlation_id=message.id,
                **options,
            )

    return publish


def _to_redis(broker: Any, options: dict[str, Any]) -> Callable[[Message], Awaitable[None]]:
    broken, refusing = ("ConnectionError", "TimeoutError"), ("ReadOnlyError", "OutOfMemoryError")
    away = _named("redis.exceptions", *broken, *refusing)

    async def publish(message: Message) -> None:
        with _outage(away):
            await broker.publish(
                message.payload,
                stream=message.topic,
                headers=_headers(message),
                correlation_id=message.id,
                **options,
            )

    return publish
