"""One of each event, as the engine emits them."""

from oncekey import events

OPERATION = "POST /charges"
HASH = "3f2a9c0b1d4e"


def sample(
    event: type[events.Event], operation: str = OPERATION, **changes: object
) -> events.Event:
    """An event of this kind, with other values where the test wants them."""
    defaults: dict[type[events.Event], dict[str, object]] = {
        events.Started: {"attempt": 1, "fence": 1},
        events.TakenOver: {"attempt": 2, "lapses": 1},
        events.Completed: {
            "status": 201,
            "attempt": 1,
            "run_s": 0.2,
            "first_attempt_age_s": 0.2,
            "body_kept": True,
        },
        events.Released: {"no_effect": False, "attempt": 1},
        events.Replayed: {
            "status": 201,
            "first_attempt_age_s": 42.0,
            "attempt": 1,
            "earlier_replays": 0,
        },
        events.Declined: {"reason": "in-flight"},
        events.LeaseWasLost: {"attempt": 1, "reason": "taken over"},
        events.OutcomeUnknown: {"attempt": 1, "lapses": 1},
        events.Resolved: {"to": "completed", "status": 201, "by": "ops", "reason": "looked"},
        events.Unprotected: {"ran": True},
        events.NotAtomic: {"status": 201},
        events.StoreAsked: {"verb": "insert", "seconds": 0.003, "error": None},
        events.Attempted: {
            "attempt": 1,
            "status": 201,
            "error": None,
            "seconds": 0.2,
            "replayed": False,
            "mismatch": False,
            "retry_in_s": None,
            "gave_up": None,
        },
    }
    fields = {"operation": operation, "key_hash": HASH, **defaults[event], **changes}
    return event(**fields)  # type: ignore[arg-type]


KINDS: list[type[events.Event]] = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
]


def one_of_each() -> list[events.Event]:
    """Every kind of event, and failures besides successes."""
    return [
        *(sample(kind) for kind in KINDS),
        sample(events.StoreAsked, error="lost"),
        sample(events.Completed, attempt=2),
        sample(events.Attempted, replayed=True),
        sample(events.Attempted, status=422, mismatch=True),
        sample(events.Attempted, status=None, gave_up="8 attempts were made"),
    ]
