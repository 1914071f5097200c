"""Steps: named parts of a handler whose results are kept, so that a later attempt skips them.

A handler takes its steps one after the other and in the same order each time. Each result is kept
under the fence before the next step starts; a later attempt gets the kept results back, reads them
all in one round trip, and goes on with the first step that has none. Whoever changed the order, the
names or the arguments in between is told (`StepsChanged`) instead of given another step's result.

What this cannot do: a step whose process dies between its effect and its record runs again. Let its
effect take `child_key`, or declare it `at_most_once`: then it is never repeated, and where nobody
knows how it ended the outcome is unknown.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from oncekey._core import arguments as canonical
from oncekey._core.answer import encode_result
from oncekey._core.framing import as_bytes, frame
from oncekey._core.key import describe_call
from oncekey._core.op import Op
from oncekey._core.printable import printable
from oncekey._core.reasons import LossKind
from oncekey._core.record import Step
from oncekey._core.values import value
from oncekey._core.verbs import AppendStep, Done, Refused, Steps, Verb
from oncekey._system.probes import probe
from oncekey.errors import LeaseLost, Misuse, OutcomeUnknown, StepsChanged
from oncekey.stores.base import traits_of

if TYPE_CHECKING:
    from oncekey._engine.attempt import Attempt
    from oncekey._engine.ownership import Ownership
    from oncekey.stores.base import Store

STEPS_MAX = 1_000
STEP_BYTES_MAX = 1_048_576
NAME_CHARS_MAX = 100

current_child_key: ContextVar[str | None] = ContextVar("oncekey_child_key", default=None)
"""The key of the step that runs now."""
current_calls: ContextVar[StepCalls | None] = ContextVar("oncekey_calls", default=None)
"""What the step that runs now calls, for transports that forward its keys by themselves."""


@value
class Kept:
    """The result that an earlier attempt left."""

    result: Any


@value
class Take:
    """Take this step now, then `end` it."""

    name: str
    digest: bytes


def child_key(record_id: bytes, name: str, call: int = 1) -> str:
    """A key for what a step calls: the same over all attempts, another one for every tenant,
    operation, key and name. A UUID of version 8, because some providers take nothing else.
    """
    if not isinstance(name, str):
        raise Misuse(f"child_key(…) takes the name of what it is for, not a {type(name).__name__}")
    parts = [b"oncekey/child/1", record_id, as_bytes(name)]
    if call > 1:
        parts.append(b"%d" % call)
    digest = bytearray(hashlib.sha256(frame(parts)).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class StepCalls:
    """The calls of one run of a step, each with a key of its own.

    The first has the step's child key. Whoever is called again, in whatever words, gets the key
    that it got before: that is a retry. Others are numbered in the order in which they come.
    """

    __slots__ = ("_keys", "_record_id", "_step")

    def __init__(self, record_id: bytes, step: str) -> None:
        self._record_id = record_id
        self._step = step
        self._keys: dict[Hashable, str] = {}

    def key_for(self, target: Hashable) -> str:
        """The key for a call of `target`."""
        key = self._keys.get(target)
        if key is None:
            key = child_key(self._record_id, self._step, len(self._keys) + 1)
            self._keys[target] = key
        return key

    def target_of(self, key: str) -> Hashable | None:
        """Whose key this is, None if it is not one of these."""
        return next((target for target, own in self._keys.items() if own == key), None)


class AttemptSteps:
    """The steps of one attempt."""

    __slots__ = ("_attempt", "_begun", "_known", "_running", "_taken", "_tried", "_unheard")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._known: list[Step] | None = None
        """What earlier attempts left, in order. A first attempt has nothing to read."""
        self._taken: set[str] = set()
        self._begun: set[str] = set()
        """Those of this attempt that must not be repeated."""
        self._running: str | None = None
        self._tried = False
        self._unheard: dict[str, tuple[bytes, Any]] = {}
        """What is kept, and whoever took it was cut off before it could hear so."""

    @property
    def any_tried(self) -> bool:
        """Whether this attempt, or one before it that it knows of, came to a step. One that failed
        may have had its effect, under a child key that only the same request may use again.
        """
        return bool(self._tried or self._begun or self._known)

    @property
    def in_doubt(self) -> bool:
        """Whether this attempt began a step that must not be repeated, and has no result of it."""
        return not self._begun <= self._taken

    @property
    def left_over(self) -> list[str]:
        """Steps of earlier attempts that this one has not come to."""
        return [step.name for step in (self._known or ())[len(self._taken) :]]

    def asks_within(
        self, store: Store, name: str, within: Any, *, at_most_once: bool
    ) -> list[Verb]:
        """What must be asked in the transaction of a step, where it has one: what earlier attempts
        left, unless that is known.

        Only where there is one writer at a time: the store's own connection may be waiting for the
        end of that transaction. Elsewhere it is better asked beside it: the transaction may have
        begun before this attempt, and under REPEATABLE READ would not show what the one before it
        left.
        """
        if within is None:
            return []
        if at_most_once:
            raise Misuse(
                f"the step {name!r} is at_most_once and within a transaction: its rows and its "
                "record are there together or not at all, so there is nothing to be in doubt "
                "about. What it does outside of the transaction is a step of its own"
            )
        known = self._known is not None or self._attempt.attempt == 1
        return [] if known or not traits_of(store).one_writer else [Steps(self._attempt.held.id)]

    def read(self, found: list[Step]) -> None:
        """What earlier attempts left."""
        self._known = found

    def begin(
        self, ownership: Ownership, name: str, arguments: tuple[Any, ...], *, at_most_once: bool
    ) -> Op[Kept | Take]:
        """What is kept of this step, or that it is to be taken now."""
        self._check(name)
        digest = digest_of(name, arguments)
        if name in self._unheard:
            return self._hear(name, digest)
        self._running = name  # already while the store is asked: no other may begin meanwhile
        try:
            begun = yield from self._look(ownership, name, digest, at_most_once=at_most_once)
        except BaseException:
            self._running = None
            raise
        if isinstance(begun, Kept):
            self._running = None
        return begun

    def _look(
        self, ownership: Ownership, name: str, digest: bytes, *, at_most_once: bool
    ) -> Op[Kept | Take]:
        attempt = self._attempt
        ownership.watch_lease(attempt)
        attempt.ensure_owned()
        if self._known is None:
            self._known = (yield from ownership.steps(attempt)) if attempt.attempt > 1 else []
        if name in self._begun:
            raise self._doubt(name)
        if len(self._taken) < len(self._known):
            known = self._expect(self._known[len(self._taken)], name, digest)
            if known.result is None:
                raise self._doubt(name)
            self._taken.add(name)
            return Kept(json.loads(known.result))
        if at_most_once:
            self._check_repeatable(name)
            yield from self._keep(ownership, Step(name, digest, None))
            self._begun.add(name)
        return Take(name, digest)

    def end(self, ownership: Ownership, take: Take, result: Any) -> Op[Any]:
        """Keep a result; gives it as later attempts will see it."""
        kept = encode(take.name, result)
        probe("before_step")
        yield from self._keep(ownership, Step(take.name, take.digest, kept))
        probe("after_step")
        return self.end_step(kept)

    def end_with(self, take: Take, result: Any) -> AppendStep:
        """The same, as a verb for the transaction in which the step did its work."""
        self._tried, held = True, self._attempt.held  # from here on it may be committed
        step = Step(take.name, take.digest, encode(take.name, result))
        return AppendStep(held.id, held.fence, held.token, step)

    def end_step(self, kept: bytes | None) -> Any:
        """The step is kept: the next may begin."""
        self._taken.add(self._running or "")
        self._running = None
        if self._known is not None and len(self._taken) > len(self._known):
            self._known.append(Step("", b"", kept))  # only its place matters from now on
        return json.loads(kept or b"null")

    def cut_off(self, take: Take, result: Any) -> None:
        """Whoever took this step was cancelled while its result was being kept. It may ask again:
        what is kept it gets, what is not is taken anew.
        """
        self._running = None
        if take.name in self._taken:
            self._unheard[take.name] = (take.digest, json.loads(encode(take.name, result)))

    def _hear(self, name: str, digest: bytes) -> Kept:
        kept, result = self._unheard.pop(name)
        self._expect(Step(name, kept, b""), name, digest)
        return Kept(result)

    @contextmanager
    def run(self, take: Take, *, undone: bool) -> Iterator[None]:
        """While its function runs: what it calls can take its key. `undone`: if it fails, whoever
        called rolls back what it did.
        """
        self._tried, record_id = self._tried or not undone, self._attempt.held.id
        key = current_child_key.set(child_key(record_id, take.name))
        calls = current_calls.set(StepCalls(record_id, take.name))
        try:
            yield
        except BaseException:
            self._running = None
            raise
        finally:
            current_calls.reset(calls)
            current_child_key.reset(key)

    def report_loss(self, ownership: Ownership, name: str) -> LeaseLost:
        """What to raise where the store refused to keep a step."""
        self._running = None
        ownership.lose(self._attempt, LossKind.REFUSED_AT_STEP)
        return LeaseLost(
            f"the step {name!r} of {self._of} was not kept: another attempt owns the record; stop "
            "here"
        )

    def _keep(self, ownership: Ownership, step: Step) -> Op[None]:
        outcome: Done | Refused = yield from ownership.keep_step(self._attempt, step)
        if isinstance(outcome, Refused):
            raise self.report_loss(ownership, step.name)

    def _check(self, name: str) -> None:
        if self._running is not None:
            raise Misuse(
                f"the step {name!r} begins while {self._running!r} runs: steps are taken one after "
                "the other, so that a later attempt can tell where it stands"
            )
        text = str(name)  # which a number is not, and may have been given
        if not 0 < len(text) <= NAME_CHARS_MAX or name != printable(text, NAME_CHARS_MAX):
            raise Misuse(
                f"a step's name is 1 to {NAME_CHARS_MAX} printable characters: {name!r:.120}"
            )
        if name in self._taken and name not in self._unheard:
            raise Misuse(
                f"the step {name!r} is taken twice: give each a name of its own, such as "
                f"{name + '-2'!r}; results and child keys are known by it"
            )
        if len(self._taken) >= STEPS_MAX:
            raise Misuse(f"an operation takes at most {STEPS_MAX} steps")

    def _check_repeatable(self, name: str) -> None:
        if self._attempt.policy.stale == "rerun":
            raise Misuse(
                f"the step {name!r} of {self._attempt.operation} is at_most_once, but "
                "Policy(stale='rerun') runs the whole operation again for a new version of its "
                "answer: register an upcast, or choose stale='replay' or 'refuse'"
            )

    @property
    def _of(self) -> str:
        return describe_call(self._attempt.operation, self._attempt.claim.key)

    def _doubt(self, name: str) -> OutcomeUnknown:
        self._attempt.doubted = True
        return OutcomeUnknown(
            f"the step {name!r} of {self._of} must not be repeated; it was begun before and nobody "
            "knows how it ended: an operator must find out"
        )

    def _expect(self, known: Step, name: str, digest: bytes) -> Step:
        if known.name == name and known.digest == digest:
            return known
        what = "with other arguments" if known.name == name else f"where {known.name!r} was taken"
        raise StepsChanged(
            f"{self._of}: the step {name!r} is taken {what} before: the program was changed while "
            "this operation was under way, or decides by more than the request and earlier "
            "results. Deploy code that takes the old steps: the next retry continues"
        )


def digest_of(name: str, arguments: tuple[Any, ...]) -> bytes:
    """Tells a changed step by its arguments."""
    return canonical.digest(b"oncekey/step/1", name, arguments)


def encode(name: str, result: Any) -> bytes:
    """A step's result as it is kept."""
    return encode_result(f"the step {name!r}", result, STEP_BYTES_MAX)
