"""FastStream: run subscribers once per message, and publish the outbox through a broker.

    runtime = oncekey.Runtime("postgresql://…")
    broker = RabbitBroker(url, middlewares=[OnceMiddleware(runtime)])

For RabbitMQ, NATS, Kafka and Redis. A message is acknowledged after the handler's result is
recorded. A redelivery is acknowledged without running, and returns the stored result, so that a
lost reply is sent after all.
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
    _message = f"{error}: pip install 'oncekey[faststream]'"
    raise ModuleNotFoundError(_message, name=error.name) from error

MessageId = Callable[[StreamMessage[Any]], str | None]
Handler = Callable[[StreamMessage[Any]], Awaitable[Any]]

PAUSE_S_MAX = 1.0
"""How long to hold a message before returning it to a broker that redelivers at once."""

_log = logging.getLogger("oncekey")


class OnceMiddleware:
    """Middleware for a broker or router: each of its subscribers runs once per message id.

    `message_id` finds a message's id; the default is the broker's own (`own_id`). `name` names a
    subscriber's inbox; the default is its function's name and its queue or topic. With the
    default, a message redelivered after either was renamed runs again.
    """

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        if "context" in settings:  # FastStream calls the class, for a message
            raise Misuse(
                "middlewares=[OnceMiddleware] passes the class: make an instance, "
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
        """Make the middleware of one message; FastStream calls this."""
        return _MessageMiddleware(self, msg, context=context)

    async def handle(self, subscriber: Any, handler: Handler, message: StreamMessage[Any]) -> Any:
        """Run the handler unless it ran before, and return its result. Otherwise tell FastStream
        what to do with the message, by raising its exceptions.
        """
        name = self._name(subscriber)
        policy = getattr(subscriber, "ack_policy", None)
        if policy is AckPolicy.ACK_FIRST:
            self._warn(name)
        message_id = self._message_id(message)
        if not message_id:
            raise Misuse(_NO_ID.format(name=name))
        _refuse_nested(name, message_id)
        acknowledger = _Acknowledger(message, is_manual=policy is AckPolicy.MANUAL)
        work = _HandlerCall(handler, message)
        try:
            outcome = await self._inbox(name).handle(
                message_id, work, payload=message.body if isinstance(message.body, bytes) else b""
            )
        except StoreUnavailable as error:
            _log.warning("%s: a message is put off: %s", name, error)
            raise await acknowledger.redeliver(PAUSE_S_MAX) from error
        match outcome:
            case Handled():
                return work.result()
            case Duplicate(result):
                await acknowledger.ack()
                return result
            case Busy(retry_after_s):
                raise await acknowledger.redeliver(retry_after_s)
            case Released():
                raise await acknowledger.redeliver(PAUSE_S_MAX)
            case Unknown(problem) | Rejected(problem):
                key = short_hash(str(keys.derive(message_id)))  # as `oncekey list` shows it
                _log.error("%s: message key=%s is rejected: %s", name, key, problem.detail)
                raise await acknowledger.reject()

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
                "lost. Set ack_policy=AckPolicy.NACK_ON_ERROR in its subscriber",
                name,
            )


def _refuse_nested(name: str, message_id: str) -> None:
    """Raise `Misuse` if another OnceMiddleware is already handling this message: it would wait for
    itself and be redelivered again and again.
    """
    around = attempts.current_or_none()
    if around is not None and (around.operation, around.key) == (name, keys.derive(message_id)):
        raise Misuse(
            f"{name} is guarded twice, by one OnceMiddleware within another: give one to the "
            "broker, or to its routers"
        )


class _MessageMiddleware(BaseMiddleware):
    def __init__(self, once: OnceMiddleware, msg: Any, /, *, context: Any) -> None:
        super().__init__(msg, context=context)
        self._once = once

    async def consume_scope(self, call_next: Handler, msg: StreamMessage[Any]) -> Any:
        return await self._once.handle(self.context.get("handler_"), call_next, msg)


class _HandlerCall:
    """Runs a handler for the inbox: returns a result JSON can store, and keeps the real one."""

    def __init__(self, handler: Handler, message: StreamMessage[Any]) -> None:
        self._handler = handler
        self._message = message
        self._result: Any = None
        self._acked: AckMessage | None = None

    async def __call__(self) -> Any:
        try:
            self._result = await self._handler(self._message)
        except AckMessage as ack:  # the handler says that it is finished
            self._acked = ack
        except NackMessage:  # the handler wants the message again
            attempt = attempts.current()
            if attempt.verdict is not Verdict.UNKNOWN:
                attempt.transient()
            raise
        result = self._result.body if isinstance(self._result, Response) else self._result
        return result.model_dump(mode="json") if hasattr(result, "model_dump") else result

    def result(self) -> Any:
        """Return or raise what the handler did."""
        if self._acked is not None:
            raise self._acked
        return self._result


class _Acknowledger:
    """Acknowledges a message whose handler does not run. FastStream does it by exception, except
    under `AckPolicy.MANUAL`, where the handler would have to.
    """

    def __init__(self, message: StreamMessage[Any], *, is_manual: bool) -> None:
        self._message = message
        self._is_manual = is_manual

    async def ack(self) -> None:
        if self._is_manual:
            await self._message.ack()

    async def redeliver(self, delay_s: float) -> NackMessage:
        options = {}
        if _is(self._message, "faststream.nats.message", "NatsMessage"):
            options["delay"] = delay_s
        else:
            await asyncio.sleep(min(delay_s, PAUSE_S_MAX))
        if self._is_manual:
            await self._message.nack(**options)
        return NackMessage(**options)

    async def reject(self) -> RejectMessage:
        if self._is_manual:
            await self._message.reject()
        return RejectMessage()


# ------------------------------------------------------------------------- names and ids

_NO_ID = (
    "{name}: this message has no usable id. Let its producer set one (message_id= for RabbitMQ, "
    "else a header message_id), or pass OnceMiddleware(message_id=…), a function that derives one "
    "from the message's content"
)


def inbox_name(subscriber: Any) -> str:
    """Return a name such as `ship of orders`: the subscriber's function and its source."""
    where = subscriber.get_log_context(None)
    places = [text for name, text in where.items() if text and name != "message_id"]
    return f"{'|'.join(call.name for call in subscriber.calls)} of {'/'.join(places)}"


def own_id(message: StreamMessage[Any]) -> str | None:
    """Return the producer's message id; else the message's position, if the broker has one that
    stays the same on redelivery: Kafka, JetStream, Redis streams.

    Not `message.message_id`: if there is none, FastStream makes a new one for each delivery.
    """
    raw = message.raw_message
    if isinstance(raw, list | tuple) or len(message.batch_headers) > 1:
        raise Misuse(
            "a batch has no id: subscribe without batch=True, or give each of its messages to an "
            "oncekey.messaging.Inbox"
        )
    if _is(message, "faststream.rabbit.message", "RabbitMessage"):
        own: str | None = raw.message_id
        return own or _header_id(message)
    return _header_id(message) or _position_id(message, raw)


def _header_id(message: StreamMessage[Any]) -> str | None:
    headers = {name.lower(): text for name, text in message.headers.items()}
    return headers.get("message_id") or headers.get("nats-msg-id")


def _position_id(message: StreamMessage[Any], raw: Any) -> str | None:
    """Return the position with the time it was written: a topic or stream that is recreated, or
    fails over to a replica that lags, assigns positions again.
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
    """Check for a class of a broker's package without importing that package."""
    imported = sys.modules.get(module)
    return imported is not None and isinstance(given, getattr(imported, name, ()))


# ------------------------------------------------------------------------------ publishing


def publish_to(broker: Any, **options: Any) -> Callable[[Message], Awaitable[None]]:
    """Make a `publish` function for `Publisher`: the topic is a RabbitMQ queue, a NATS subject, a
    Kafka topic or a Redis stream. `options` go to the broker's `publish`: `exchange=` for RabbitMQ
    (the topic is then the routing key), `stream=` for NATS, which requires it.
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
def _raise_outage(raised: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turn exceptions of an unreachable or refusing broker into one that `Publisher` takes for an
    outage: as a message's own failure, they would get it parked.
    """
    try:
        yield
    except raised as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error


def _exception_types(module: str, *names: str) -> tuple[type[Exception], ...]:
    """Return exceptions of a broker's client, which is imported if the broker is used."""
    return tuple(getattr(sys.modules[module], name) for name in names)


def _to_rabbit(broker: Any, options: dict[str, Any]) -> Callable[[Message], Awaitable[None]]:
    where = "routing_key" if "exchange" in options else "queue"
    outages = _exception_types(
        "aiormq.exceptions", "ChannelInvalidStateError"
    )  # until it is connected again

    async def publish(message: Message) -> None:
        with _raise_outage(outages):
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
            "publish_to(NatsBroker(…), stream='shop'): without a stream NATS does not confirm a "
            "message, and may lose it"
        )
    outages = _exception_types("nats.errors", "ConnectionClosedError", "OutboundBufferLimitError")
    outages += _exception_types(
        "nats.js.errors", "ServiceUnavailableError"
    )  # also where a stream is full

    async def publish(message: Message) -> None:
        headers = {**_headers(message), "Nats-Msg-Id": message.id}
        with _raise_outage(outages):
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
    outages = _exception_types("aiokafka.errors", "KafkaTimeoutError", *passing)

    async def publish(message: Message) -> None:
        with _raise_outage(outages):
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
    outages = _exception_types("redis.exceptions", *broken, *refusing)

    async def publish(message: Message) -> None:
        with _raise_outage(outages):
            await broker.publish(
                message.payload,
                stream=message.topic,
                headers=_headers(message),
                correlation_id=message.id,
                **options,
            )

    return publish
