"""Stores with one common mistake each: the contract must catch every one."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from oncekey._core.op import Op
from oncekey._core.record import Answer, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Refused,
    Scan,
    Swap,
    Sweep,
    Tally,
    Verb,
    When,
)
from oncekey.errors import StoreUnavailable
from oncekey.stores.memory import MemoryStore

CAUGHT_BY: dict[type[MemoryStore], str] = {}
"""Every mutant, and the test that must fail for it."""


class Mutant(MemoryStore):
    """A memory store with a mistake in one kind of verb."""

    def __init_subclass__(cls, caught_by: str) -> None:
        CAUGHT_BY[cls] = caught_by

    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        outcomes = []
        for verb in verbs:
            outcomes.append((yield from self.one(verb)))
        return outcomes

    def one(self, verb: Verb) -> Op[Any]:
        """Return the outcome of a verb; subclasses change it, or what happens before or after."""
        [outcome] = yield from super().perform([verb])
        return outcome


def current(swap: Swap, store: MemoryStore, *fields: str) -> Swap:
    """Return the swap with the values found in the record, as if they were not compared."""
    row = store._rows.get(swap.id)
    changes = {} if row is None else {name: getattr(row, name) for name in fields}
    return dataclasses.replace(swap, **changes)


class IgnoresFence(Mutant, caught_by="test_p2_state_fence_and_token_must_all_be_right"):
    def one(self, verb: Verb) -> Op[Any]:
        return super().one(current(verb, self, "fence") if isinstance(verb, Swap) else verb)


class IgnoresToken(Mutant, caught_by="test_the_token_alone_tells_two_owners_of_one_fence"):
    def one(self, verb: Verb) -> Op[Any]:
        return super().one(current(verb, self, "token") if isinstance(verb, Swap) else verb)


class IgnoresState(Mutant, caught_by="test_p3_after_completion_nothing_changes_the_answer"):
    def one(self, verb: Verb) -> Op[Any]:
        return super().one(current(verb, self, "state") if isinstance(verb, Swap) else verb)


class RevivesByRenewal(Mutant, caught_by="test_p2_after_a_release_its_owner_writes_nothing"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap) and verb.to is State.RUNNING and not verb.raise_fence:
            verb = current(verb, self, "state")
        return super().one(verb)


class BelievesTheReader(Mutant, caught_by="test_p8_a_condition_on_time_is_judged_at_the_write"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap):
            verb = dataclasses.replace(verb, when=When.ANY)
        return super().one(verb)


class TakesOverTheRenewed(
    Mutant, caught_by="test_p1_a_take_over_loses_to_a_renewal_that_landed_after_the_read"
):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap) and verb.when is When.LAPSED:
            verb = dataclasses.replace(verb, when=When.ANY)
        return super().one(verb)


class LetsFencesStay(Mutant, caught_by="test_fences_rise_with_every_owner_for_ever"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap):
            verb = dataclasses.replace(verb, raise_fence=False)
        return super().one(verb)


class ForgetsFencesWithRecords(
    Mutant, caught_by="test_a_removed_record_leaves_no_fence_to_be_used_again"
):
    def one(self, verb: Verb) -> Op[Any]:
        self._fence_floor = 0
        return super().one(verb)


class RenewsWhenFound(Mutant, caught_by="test_what_is_there_is_found_and_nothing_is_written"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(outcome, Found):
            self._rows[outcome.record.id].beat += 1
        return outcome


class OverwritesTheExpired(Mutant, caught_by="test_an_expired_record_is_found_as_it_is"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Insert):
            row = self._rows.get(verb.id)
            if row is not None and row.expires <= self._now():
                del self._rows[verb.id]
        return super().one(verb)


class ChecksThenInserts(Mutant, caught_by="test_p1_of_many_inserts_one_wins"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Insert) and verb.id not in self._rows:
            threading.Event().wait(0.05)
            self._rows.pop(verb.id, None)
        return super().one(verb)


class CountsRetentionFromTheStart(
    Mutant, caught_by="test_retention_counts_from_the_end_not_from_the_beginning"
):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(verb, Swap) and (row := self._rows.get(verb.id)):
            row.expires = row.created + verb.retention_s
        return outcome


class HasOneTimeForLeaseAndRetention(
    Mutant, caught_by="test_a_new_record_has_one_lease_and_then_its_retention"
):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(outcome, Inserted) and isinstance(verb, Insert):
            row = self._rows[verb.id]
            row.expires = row.lease_until
        return outcome


class SweepsTheLapsed(
    Mutant, caught_by="test_p10_a_lapsed_record_is_left_for_whoever_takes_it_over"
):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Sweep):
            for row in self._rows.values():
                if row.is_lapsed(self._now()):
                    row.expires = self._now()
        return super().one(verb)


class LosesEmptyBodies(Mutant, caught_by="test_bodies_are_kept_byte_for_byte"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap) and verb.answer is not None:
            answer = dataclasses.replace(verb.answer, body=verb.answer.body or None)
            verb = dataclasses.replace(verb, answer=answer)
        return super().one(verb)


class KeepsBodiesAsText(Mutant, caught_by="test_bodies_are_kept_byte_for_byte"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap) and verb.answer is not None and verb.answer.body is not None:
            text = verb.answer.body.decode(errors="replace").encode()
            verb = dataclasses.replace(verb, answer=dataclasses.replace(verb.answer, body=text))
        return super().one(verb)


class JoinsHeaderLines(Mutant, caught_by="test_header_lines_are_kept_as_lines"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap) and verb.answer is not None:
            headers = tuple(dict(verb.answer.headers).items())
            answer = dataclasses.replace(verb.answer, headers=headers)
            verb = dataclasses.replace(verb, answer=answer)
        return super().one(verb)


class FoldsTenants(Mutant, caught_by="test_texts_that_look_alike_are_two"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Insert):
            claim = dataclasses.replace(verb.claim, tenant=verb.claim.tenant.strip().lower())
            verb = Insert(claim)
        return super().one(verb)


class DeletesWhenPurging(Mutant, caught_by="test_a_purge_never_causes_a_second_run"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(verb, Purge):
            for record_id in [i for i, row in self._rows.items() if not row.claim.key]:
                del self._rows[record_id]
        return outcome


class PurgesWhatRuns(Mutant, caught_by="test_what_runs_is_left_alone"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Purge):
            for row in self._rows.values():
                row.claim = dataclasses.replace(row.claim, key="")
        return super().one(verb)


class KeepsTheFirstRequest(Mutant, caught_by="test_whoever_takes_over_brings_its_own_request"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap):
            verb = dataclasses.replace(verb, claim=None)
        return super().one(verb)


class StartsOverWithOldAnswers(
    Mutant, caught_by="test_starting_over_forgets_everything_but_the_fence"
):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Swap):
            verb = dataclasses.replace(verb, fresh=False)
        return super().one(verb)


class ErasesTheAnswerLater(Mutant, caught_by="test_only_completing_touches_the_answer"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(verb, Swap) and (row := self._rows.get(verb.id)):
            row.answer, row.resource_id = verb.answer, verb.resource_id
        return outcome


class SaysNotWhoWon(Mutant, caught_by="test_a_refusal_tells_what_stands_there_instead"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        return Refused(None) if isinstance(outcome, Refused) else outcome


class TakesStepsFromAnybody(Mutant, caught_by="test_p2_only_the_owner_keeps_steps"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, AppendStep) and (row := self._rows.get(verb.id)):
            verb = dataclasses.replace(verb, fence=row.fence, token=row.token)
        return super().one(verb)


class SortsSteps(Mutant, caught_by="test_steps_are_kept_in_the_order_in_which_they_came"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(outcome, list) and outcome and isinstance(outcome[0], Step):
            outcome.sort(key=lambda step: step.name)
        return outcome


class MovesReplacedSteps(Mutant, caught_by="test_a_step_of_the_same_name_is_replaced_in_its_place"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, AppendStep) and (row := self._rows.get(verb.id)):
            row.steps.pop(verb.step.name, None)
        return super().one(verb)


class TalliesByWriting(Mutant, caught_by="test_a_tally_changes_nothing_else"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Tally):
            for record_id in {*verb.replays, *verb.conflicts} & set(self._rows):
                self._rows[record_id].beat += 1
        return super().one(verb)


class ScansBeforeItFilters(Mutant, caught_by="test_a_narrowed_scan_fills_its_pages"):
    def one(self, verb: Verb) -> Op[Any]:
        if not isinstance(verb, Scan):
            return (yield from super().one(verb))
        page = yield from super().one(dataclasses.replace(verb, state=None))
        return [record for record in page if verb.state in (None, record.state)]


class ScansWithBodies(Mutant, caught_by="test_a_scan_leaves_bodies_out_and_all_else_in"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(verb, Scan):
            return [self._rows[record.id].record(self._now()) for record in outcome]
        return outcome


class FindsEverythingDue(Mutant, caught_by="test_what_was_taken_over_or_ended_is_not_due"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Due):
            return sorted(self._rows)[: verb.limit]
        return (yield from super().one(verb))


class ReadsAReplica(Mutant, caught_by="test_a_new_record_runs_its_first_attempt"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        return None if isinstance(verb, Find | Peek) else outcome


class FailsTogether(Mutant, caught_by="test_a_bad_member_fails_alone"):
    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        for verb in verbs:
            if isinstance(verb, Insert) and not verb.claim.tenant.isprintable():
                raise StoreUnavailable("invalid byte sequence", sent=True)
        return (yield from super().perform(verbs))


class GivesUpAtTheFirstBadMember(
    Mutant, caught_by="test_a_bad_completion_leaves_the_record_running"
):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(verb, Swap) and not (verb.resource_id or "").isprintable():
            raise ValueError("noticed after it was written")
        return outcome


class AnswersInTheWrongOrder(Mutant, caught_by="test_a_crowd_is_served_each_with_its_own_outcome"):
    def perform(self, verbs: Sequence[Verb]) -> Op[list[Any]]:
        outcomes = yield from super().perform(verbs)
        return list(reversed(outcomes))


class PurgesOnlyBodies(Mutant, caught_by="test_the_content_is_blanked_and_the_fact_kept"):
    def one(self, verb: Verb) -> Op[Any]:
        answers = {i: row.answer for i, row in self._rows.items()}
        outcome = yield from super().one(verb)
        if isinstance(verb, Purge):
            for record_id, answer in answers.items():
                if answer is not None:
                    self._rows[record_id].answer = Answer(answer.status, answer.headers, None)
        return outcome


class CountsOnlyWhatIsThere(Mutant, caught_by="test_an_empty_store_holds_nothing"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(outcome, dict):
            return {state: count for state, count in outcome.items() if count}
        return outcome


class RoundsTimesToSeconds(Mutant, caught_by="test_leases_shorter_than_a_second_are_leases"):
    def one(self, verb: Verb) -> Op[Any]:
        if isinstance(verb, Insert):
            verb = Insert(dataclasses.replace(verb.claim, lease_s=float(round(verb.claim.lease_s))))
        return super().one(verb)


class ReportsTimesByItsCaller(Mutant, caught_by="test_time_left_runs_down_and_age_runs_up"):
    def one(self, verb: Verb) -> Op[Any]:
        outcome = yield from super().one(verb)
        if isinstance(outcome, Record):
            return dataclasses.replace(outcome, lease_left_s=outcome.lease_s)
        return outcome
