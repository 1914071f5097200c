"""The refusals of the engine, in words for the developer of a client."""

from __future__ import annotations

from oncekey._core.problems import Kind, Problem
from oncekey._core.record import Record


def in_flight(record: Record) -> Problem:
    # Half of the time so far is a fair guess at what is left; never beyond the lease.
    retry_after_s = max(1.0, min(record.age_s / 2, record.lease_left_s))
    return Problem(
        Kind.IN_FLIGHT,
        "A request with this key is still running. Retry with the same key and the same request.",
        retryable=True,
        retry_after_s=retry_after_s,
    )


def contention() -> Problem:
    return Problem(
        Kind.IN_FLIGHT,
        "Other requests with this key keep changing its record. Retry with the same key.",
        retryable=True,
        retry_after_s=1.0,
    )


def mismatch(fields: tuple[str, ...]) -> Problem:
    which = f" These fields differ: {', '.join(fields)}." if fields else ""
    return Problem(
        Kind.MISMATCH,
        f"This key was used before with another request.{which} Use a new key for a new request.",
        fields=fields,
    )


def outcome_unknown() -> Problem:
    return Problem(
        Kind.OUTCOME_UNKNOWN,
        "An earlier request with this key began and nobody knows how it ended. Do not retry: ask "
        "whoever runs this service to find out and to resolve it.",
    )


def request_failed() -> Problem:
    """The response to a request that failed itself, if a retry will not run it again."""
    return Problem(
        Kind.OUTCOME_UNKNOWN,
        "The request failed, and nobody knows what it did before that. A retry with this key will "
        "not run it again: ask whoever runs this service to find out and to resolve it.",
    )


def answer_not_kept(record: Record) -> Problem:
    status, location = _status_and_location(record)
    return Problem(
        Kind.ANSWER_NOT_KEPT,
        f"The request with this key was completed with status {status}, but its answer was not "
        "kept. It will not run again; read the resource instead.",
        location=location,
    )


def key_expired() -> Problem:
    return Problem(
        Kind.KEY_EXPIRED,
        "The request with this key was completed, so long ago that its answer is not kept any "
        "more. It will not run again; read the resource instead.",
    )


def stale_answer(record: Record, version: int) -> Problem:
    status, location = _status_and_location(record)
    return Problem(
        Kind.STALE_ANSWER,
        f"The request with this key was completed with status {status}, and answered in version "
        f"{record.schema_version}. This service answers in version {version} now. It will not run "
        "again; read the resource instead.",
        location=location,
    )


def upcast_failed(record: Record, version: int) -> Problem:
    return Problem(
        Kind.STALE_ANSWER,
        "The request with this key was completed, but its answer cannot be brought from version "
        f"{record.schema_version} to {version} now. Retry with the same key.",
        retryable=True,
        retry_after_s=5.0,
    )


def newer_record() -> Problem:
    return Problem(
        Kind.NEWER_RECORD,
        "This key's record was written by a newer release of this service. Retry with the same "
        "key.",
        retryable=True,
        retry_after_s=5.0,
    )


def store_unavailable() -> Problem:
    return Problem(
        Kind.STORE_UNAVAILABLE,
        "The store that remembers requests does not answer, so the request was not run. Retry "
        "with the same key.",
        retryable=True,
        retry_after_s=1.0,
    )


def answer_not_recorded(lease_left_s: float) -> Problem:
    return Problem(
        Kind.STORE_UNAVAILABLE,
        "The request ran, but its answer could not be recorded. Retry with the same key to learn "
        "it.",
        retryable=True,
        retry_after_s=max(lease_left_s, 1.0),
    )


def commit_unknown() -> Problem:
    """The commit of a request without a key: a retry would learn nothing, and run again."""
    return Problem(
        Kind.STORE_UNAVAILABLE,
        "The request ran, but nobody knows whether what it wrote was committed. It brought no key "
        "by which a retry could learn that.",
        advice="Find out what became of it before you send it again.",
    )


def unsettled(lease_left_s: float) -> Problem:
    return Problem(
        Kind.UNSETTLED,
        "An earlier request with this key died or failed while it ran, and what became of it could "
        "not be found out just now. Retry with the same key.",
        retryable=True,
        retry_after_s=max(lease_left_s, 1.0),
    )


def _status_and_location(record: Record) -> tuple[int, bytes | None]:
    """Return the status of the response, and the location of the resource that it created."""
    if record.answer is None:
        return 0, None
    return record.answer.status, dict(record.answer.headers).get(b"location")
