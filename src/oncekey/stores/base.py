"""The contract of a store, in words. `oncekey.testing.contract` is the same contract as tests.

A store is written once for sync and async: `perform` is a generator that yields questions in the
store's own language (a statement, a script call) and is sent the answers; `connect` and `aconnect`
give something that can answer them. Stores judge nothing: they compare, write and return what they
found.

Time
    Every deadline is measured by the store's own clock, read inside the operation that uses it. A
    store turns `lease_s` and `retention_s` into deadlines itself and returns the time left.
    On every write: lease deadline = now + `lease_s` (none unless running); expiry = now +
    (`lease_s` or 0) + `retention_s`, so that no record expires while its lease is live. A record is
    *lapsed* when it runs and its lease deadline is not after now; *expired* when its expiry is not
    after now; *overlong* when it runs and its lease deadline is later than now + 1.001 times its
    `lease_s`.

    A store whose conditions cannot read a clock observes leases instead: what is left of one is
    counted from when this process first read the record with its present fence and beat, and a swap
    `when` lapsed is carried out only at a beat that was seen for a whole lease. Retention still
    needs a clock that all processes share.

Fence
    Positive, and greater than every fence that this id ever had, even if its record was removed in
    between. `Insert` and every swap with `raise_fence` take a new one.

Insert → Inserted(fence) | Found(record)
    Atomic: of any number of concurrent inserts of one id exactly one is `Inserted`, the others find
    its record. Writes state running, attempt 1, lapses 0, beat 0, and the claim's request if it has
    one. An existing record is returned as it is, expired or not, with its answer, and *nothing is
    written*. Repeating an insert whose reply was lost finds the record with the claim's own token;
    the engine tells these cases apart. A store that could neither insert nor find (a concurrent
    removal, an older snapshot) repeats, at most `INSERT_ROUNDS_MAX` times.

Swap → Done(fence) | Refused(record or None)
    One atomic compare-and-set: only if state, fence *and* token equal what the swap expects, and
    `when` holds by the store's clock at the moment of the write. Then: state `to`; fence raised if
    `raise_fence`; token `new_token` if given; deadlines as above; beat + 1; `attempt` and `lapses`
    if given; `no_effect`; `answer` and `resource_id` as given where `to` is completed. With
    `claim`: its operation, key (which a purge may have blanked), fingerprint, version, recovery,
    schema version, field digests, lease, retention and request (also by none) replace the record's.
    With `fresh`: created now, replays and conflicts 0, kept answer, resource id and steps
    forgotten. Both may come with a completion too: a record that is blanked for good keeps its id,
    state and deadline, and nothing else. From unknown to released: steps that were only begun are
    forgotten, since the operator knows that they did not happen. Where `to` is not running, the
    stored request is forgotten. An acknowledged write is as durable as the store declares; a store
    must not hide a lost reply by retrying.

Find → Record | None, Peek → Glimpse | None
    The newest acknowledged state, never a replica's.

AppendStep → Done(fence) | Refused(record or None)
    Only while running under this fence and token. A step of the same name is replaced in its place,
    except that the mark of a start never replaces a result: the mark may arrive late. Nothing else
    of the record changes, neither deadline nor beat.
Steps → list[Step]

Requested → bytes | None
    The request of the running claim: the one that the last `Insert` or `Swap` with a claim brought,
    and None once the record no longer runs, no matter who ended it. No other verb returns it, and a
    claim without one costs nothing extra.

Tally → None
    Adds to `replays` and `conflicts` of the records that exist. Changes nothing else, and no
    deadline.

Due(limit, abandoned) → list of ids, Sweep(limit) → int
    `Due` hints at records that are lapsed or expired, the longest overdue first. With `abandoned`
    it names only lapsed ones whose recovery is not "rerun", however many others are lapsed too.
    `Sweep` removes expired records with their steps, answers and requests, judged at the removal;
    never a live lease.

Scan → list[Record] with bodies left out (None), in id order. Count → dict[State, int],
    every state named.
Purge(tenant, limit) → int
    Blanks key, answer headers and body, resource id, field digests, the results of steps and what
    may be left of a request, of that tenant's records that do not run and were not blanked yet.
    Ids, states and fingerprints stay until they expire, and steps as if they were only begun, so
    that a purge never causes a second run of a request or a step.

Errors
    `StoreUnavailable(sent=False)` only if the question provably was not sent;
    `StoreUnavailable(sent=True)` for anything that may have been carried out; `StoreUnfit` if the
    store must not be used as it is. A verb that the store cannot take raises another exception and
    changes nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from oncekey._core.op import Op
from oncekey._core.verbs import Verb

if TYPE_CHECKING:
    from oncekey.stores.outbox import OutboxTable

INSERT_ROUNDS_MAX = 5


class Again(enum.Enum):
    """The outcome of a verb that could not be served in its batch: ask it again, alone."""

    AGAIN = "again"


AGAIN = Again.AGAIN


class Connection(Protocol):
    """Answer questions, blocking."""

    def ask(self, question: Any) -> Any: ...
    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """Answer questions, awaited."""

    async def ask(self, question: Any) -> Any: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Durability:
    """What survives a crash, in the words of the documentation."""

    process_crash: bool
    """Acknowledged writes survive the death of the application."""
    store_crash: bool
    """… and that of the store's process."""
    power_loss: bool
    """… and the loss of power on the store's machine."""
    note: str


class Store(Protocol):
    """What the engine needs of a store. See `Capabilities` for what it may have besides."""

    name: str
    """For messages and labels: nothing is decided by it."""
    durability: Durability

    def group(self, verb: Verb) -> Hashable:
        """Return the verb's group: a group shares round trips and has its own connection."""

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        """Carry out verbs of one group together and return their outcomes in the same order.

        No two of them change the same id. An outcome may be `AGAIN` where more than one verb was
        given.
        """

    def prepare(self) -> Op[None]:
        """Check that the store is fit, or raise `StoreUnfit`. Asked first on every connection."""

    def migrate(self) -> Op[list[str]]:
        """Bring the schema up to date and return the names of applied migrations. Safe to run
        twice, and beside running code.
        """

    def connect(self) -> Connection:
        """Open a connection; raises `StoreUnavailable(sent=False)`."""

    async def aconnect(self) -> AsyncConnection:
        """Open a connection; raises `StoreUnavailable(sent=False)`."""


# ----------------------------------------------------------------------------- capabilities


@dataclass(frozen=True, slots=True)
class Traits:
    """How a store differs from others, where its callers have to know."""

    one_writer: bool = False
    """One transaction writes at a time: until a caller's transaction ends, all others wait."""
    in_process: bool = False
    """Its records are in the memory of this process, and no other process sees them."""


class Transactions(Protocol):
    """Writes records in transactions of callers. `stores/transactions.py` has the one of SQL."""

    def perform(self, store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out verbs of `store` in the transaction that is open on `connection`."""

    async def aperform(self, store: Store, connection: Any, verbs: Sequence[Verb]) -> list[Any]:
        """The same, awaited."""

    def write(self, store: Store, given: Any, token: bytes) -> None:
        """Write what the caller hands over, for a request that has no record; nothing where the
        caller's own commit does that. `token` is random.
        """

    async def awrite(self, store: Store, given: Any, token: bytes) -> None:
        """The same, awaited."""


class Capabilities(Protocol):
    """What a store may have besides, and what is assumed where it does not.

    Read them by the functions below: a store written for 0.1 has none of these attributes. A store
    around another one passes on those of the store within (`wrapper.StoreAround`).
    """

    @property
    def traits(self) -> Traits:
        """Else none of them."""

    @property
    def location(self) -> Hashable:
        """Equal for stores of the same records, however each of them was named. Host names are
        compared as text, so two names of one server count as two. Else the store itself.
        """

    @property
    def transactions(self) -> Transactions | None:
        """How records commit together with rows of the caller's. Else they cannot."""

    @property
    def outbox(self) -> OutboxTable | None:
        """The table of messages beside the caller's rows. Else there is none."""


_NO_TRAITS = Traits()


def traits_of(store: Store) -> Traits:
    traits: Traits = getattr(store, "traits", _NO_TRAITS)
    return traits


def location_of(store: Store) -> Hashable:
    location: Hashable = getattr(store, "location", id(store))
    return location


def transactions_of(store: Store) -> Transactions | None:
    transactions: Transactions | None = getattr(store, "transactions", None)
    return transactions


def outbox_of(store: Store) -> OutboxTable | None:
    outbox: OutboxTable | None = getattr(store, "outbox", None)
    return outbox
