"""Admission: what may run as new. The rest is answered from what is remembered of it, or refused.

Part of the engine. Three things speak against a key of which nothing is known: it is older than
memory (`_core.key_age`), its tenant has used up its quota (`quotas`), or the store has lost what it
knew (`notices`). The first two are looked at before anything is written, so that a refusal costs
nothing; age and loss once more when the claim is made, because only then it is known that nothing
was remembered at that moment.
"""

from __future__ import annotations

from oncekey._core.key_age import check_key_age, older_than_memory
from oncekey._core.op import Op
from oncekey._core.policy import Policy
from oncekey._core.problems import Problem
from oncekey._core.record import Claim, Record, State
from oncekey._engine.attempt import Attempt
from oncekey._engine.decisions import Call, Execute, Refuse, Replay
from oncekey._engine.notices import LOOK, Notices
from oncekey._engine.ownership import Ownership
from oncekey._engine.quotas import Quotas
from oncekey._engine.store_calls import StoreCalls
from oncekey._system.clock import Clock
from oncekey.errors import StoreUnavailable


class Admission:
    """Knows what must not run."""

    def __init__(
        self,
        calls: StoreCalls,
        ownership: Ownership,
        *,
        clock: Clock,
        notices: Notices | None,
        quotas: Quotas | None,
    ) -> None:
        self._calls = calls
        self._ownership = ownership
        self._clock = clock
        self.notices = notices
        self._quotas = quotas

    def check_notice(self, claim: Claim, *, runs: bool, heard_of: bool = False) -> Op[None]:
        """Look at the store's notice, if it is time to; `runs` who may not go on without.

        It bars only from running. While a database is down, a store may have answers elsewhere: who
        has seen the notice before may ask for one, and looks again before it runs.
        """
        notices = self.notices
        if notices is None or not notices.due(self._clock.monotonic(), runs=runs):
            return
        try:
            found = yield from self._calls.ask(LOOK, claim, heard_of=heard_of)
            notices.record_look(found, self._clock.monotonic())
        except StoreUnavailable:
            notices.record_miss(missed=True)
            if runs or not notices.missed:
                raise
        except BaseException:  # also of one whose client has gone
            notices.record_miss()
            raise

    def refusal(self, call: Call, policy: Policy) -> Problem | None:
        """Why a key of which nothing is known does not run; None if it may."""
        if policy.key_age_s_max is not None:
            old = check_key_age(call.key, call.first_sent, self._clock.wall(), policy)
            if old is not None:
                return old
        return None if self._quotas is None else self._quotas.refusal(call.tenant)

    def let_run(self, claimed: Execute, call: Call) -> Op[Execute | Replay | Refuse]:
        """What was claimed runs, unless it may have run before and that is not remembered."""
        attempt = claimed.attempt
        old = self._too_old(attempt, call)
        # Given back under `ask`, it would run unasked where a clock is behind.
        if self._may_have_run(call) or (old is not None and attempt.asks):
            return (yield from self._ownership.give_up(attempt, call))
        if old is not None:
            yield from self._ownership.abandon(attempt, no_effect=True)
            return Refuse(old)
        return claimed

    def must_not_run(self, attempt: Attempt, call: Call) -> bool:
        """The same of what no client comes back for."""
        return self._may_have_run(call) or self._too_old(attempt, call) is not None

    def _may_have_run(self, call: Call) -> bool:
        """Whether it may have run before the store lost its memory: then it must not run now."""
        return self.notices is not None and self.notices.may_have_forgotten(call)

    def _too_old(self, attempt: Attempt, call: Call) -> Problem | None:
        """Whether memory did not reach back to the making of the key when its record began: the
        claim may have been long on its way, and others may have gone on with it.
        """
        if attempt.policy.key_age_s_max is None:
            return None
        ago_s = 0.0 if attempt.attempt == 1 else max(attempt.age_s, 0.0)
        began = self._clock.wall() - ago_s
        return older_than_memory(call.key, call.first_sent, began, attempt.policy)


def is_new(found: Record) -> bool:
    """Whether a record says nothing about what was done with its key."""
    return found.expired or (found.state is State.RELEASED and found.no_effect)
