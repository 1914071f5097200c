"""Every metric in one literal table: what it counts, in which unit, by which labels.

The names are such that Prometheus shows the same ones whether `PrometheusHook` serves them or an
OpenTelemetry exporter translates them: one set of dashboards and alerts fits both.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: they are dictionary keys
class Metric:
    """A counter; with buckets, a histogram."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    unit: str = "1"
    """In OpenTelemetry's spelling: "s", or "1" for plain numbers."""
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        suffix = {"s": "_seconds"}.get(self.unit, "") if self.buckets else "_total"
        return f"oncekey_{self.name}{suffix}"

    @property
    def opentelemetry_name(self) -> str:
        return f"oncekey.{self.name}"


_QUICK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_RUN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_WAIT_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
_TIMES = (1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)

ATTEMPTS = Metric(
    "attempts",
    "Handlers that started; order is first for a key's first run, later for every other run.",
    ("operation", "order"),
)
COMPLETIONS = Metric(
    "completions",
    "Responses recorded, by class of status (2xx, 4xx, ...) and by whether the body was kept.",
    ("operation", "status", "body"),
)
RELEASES = Metric(
    "releases",
    "Records released so that a retry may run; reason is failure or no-effect.",
    ("operation", "reason"),
)
REPLAYS = Metric("replays", "Retries that got the stored response.", ("operation",))
REFUSALS = Metric(
    "refusals",
    "Requests refused, by reason: in-flight is a conflict, mismatch another request.",
    ("operation", "reason"),
)
TAKE_OVERS = Metric(
    "take_overs", "Records taken from an attempt whose lease had lapsed.", ("operation",)
)
LEASE_LOSSES = Metric(
    "lease_losses",
    "Attempts that learnt that they no longer own their record, or cannot know.",
    ("operation", "reason"),
)
UNKNOWN_OUTCOMES = Metric(
    "unknown_outcomes",
    "Records declared unknown: nobody knows how they ended, an operator must look.",
    ("operation",),
)
RESOLUTIONS = Metric(
    "resolutions",
    "Unknown outcomes that an operator resolved; how is completed or released.",
    ("operation", "how"),
)
UNPROTECTED = Metric(
    "unprotected",
    "Responses not stored because the store was down; how is ran-unclaimed or unrecorded.",
    ("operation", "how"),
)
NOT_ATOMIC = Metric(
    "not_atomic",
    "Atomic operations whose handler did not use its transaction; counted once for each process.",
    ("operation",),
)
STORE_ERRORS = Metric(
    "store_errors",
    "Store queries that failed; error is lost if the store may have acted, else not-sent.",
    ("verb", "error"),
)
STORE_DURATION = Metric(
    "store_duration",
    "How long a store query took, answered or not.",
    ("verb",),
    unit="s",
    buckets=_QUICK_S,
)
RUN_DURATION = Metric(
    "run_duration",
    "From the claim to the recorded response: the handler's run time.",
    ("operation",),
    unit="s",
    buckets=_RUN_S,
)
RETRY_WAIT = Metric(
    "retry_wait",
    "From a key's first attempt to the response that a retry got; how is replayed or ran.",
    ("operation", "how"),
    unit="s",
    buckets=_WAIT_S,
)
RETRIES_PER_KEY = Metric(
    "retries_per_key",
    "At every replay: its number among the replays of its key, as far as they were counted.",
    ("operation",),
    buckets=_TIMES,
)

CLIENT_ATTEMPTS = Metric(
    "client_attempts",
    "Requests that left this process; order is first, or later for a retry; status is the class of "
    "the response (2xx, 5xx, ...), or none.",
    ("operation", "order", "status"),
)
CLIENT_REPLAYS = Metric(
    "client_replays",
    "Requests of this process that got a stored response: an earlier attempt had arrived.",
    ("operation",),
)
CLIENT_MISMATCHES = Metric(
    "client_mismatches",
    "Requests of this process that a server refused: their key belongs to another request.",
    ("operation",),
)
CLIENT_GIVEN_UP = Metric(
    "client_given_up",
    "Requests of this process that were not sent again, although a retry was in order.",
    ("operation", "reason"),
)
CLIENT_ATTEMPT_DURATION = Metric(
    "client_attempt_duration",
    "How long one attempt of this process took, answered or not.",
    ("operation",),
    unit="s",
    buckets=_RUN_S,
)

CATALOGUE = (
    ATTEMPTS,
    COMPLETIONS,
    RELEASES,
    REPLAYS,
    REFUSALS,
    TAKE_OVERS,
    LEASE_LOSSES,
    UNKNOWN_OUTCOMES,
    RESOLUTIONS,
    UNPROTECTED,
    NOT_ATOMIC,
    STORE_ERRORS,
    STORE_DURATION,
    RUN_DURATION,
    RETRY_WAIT,
    RETRIES_PER_KEY,
    CLIENT_ATTEMPTS,
    CLIENT_REPLAYS,
    CLIENT_MISMATCHES,
    CLIENT_GIVEN_UP,
    CLIENT_ATTEMPT_DURATION,
)
