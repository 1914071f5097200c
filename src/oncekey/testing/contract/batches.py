"""Batches: verbs that travel together fare as if each had gone alone."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import pytest

from oncekey._core.record import Answer, Claim, Record, State, Step
from oncekey._core.verbs import (
    AppendStep,
    Count,
    Done,
    Due,
    Find,
    Found,
    Insert,
    Inserted,
    Peek,
    Purge,
    Refused,
    Requested,
    Scan,
    Steps,
    Sweep,
    Tally,
    Verb,
)
from oncekey.errors import StoreUnavailable
from oncekey.stores.batching import BATCH_BYTES_MAX, BATCH_ROWS_MAX
from oncekey.testing.contract.subject import Case, Contract, new_id, new_token

CROWD = 300  # more than one batch may hold

# Texts that some engines cannot store. A store may accept or refuse them, but must not change them,
# nor fail other verbs of the same batch.
AWKWARD = {"half a surrogate pair": "a\ud800b", "a NUL": "a\x00b", "both": "\x00\udfff"}


def is_kept(case: Case, claim: Claim, outcome: Any) -> bool:
    """Return whether a claim with an awkward text was stored; if not, nothing else may have
    changed.
    """
    if isinstance(outcome, Exception):
        assert not isinstance(outcome, StoreUnavailable), outcome
        assert case.ask(Find(claim.id)) is None
        return False
    assert isinstance(outcome, Inserted)
    assert case.find(claim.id).tenant == claim.tenant
    return True


class BatchContract(Contract):
    def test_a_crowd_is_served_each_with_its_own_outcome(self, case: Case) -> None:
        assert CROWD > BATCH_ROWS_MAX
        claims = [case.claim() for _ in range(CROWD)]
        outcomes = case.together([Insert(claim) for claim in claims])
        assert all(isinstance(outcome, Inserted) for outcome in outcomes), outcomes
        found = case.together([Find(claim.id) for claim in claims])
        assert [record.token for record in found] == [claim.token for claim in claims]
        assert [record.fence for record in found] == [outcome.fence for outcome in outcomes]

    def test_claims_that_differ_in_everything_share_a_batch(self, case: Case) -> None:
        """Usual values may be stored in less space: each claim is found as it was given."""
        usual = case.claim(lease_s=30.0, retention_s=86_400.0)
        ways: list[dict[str, Any]] = [
            {},
            {"key": "0123abcd-0000-4000-8000-00000000000f"},
            {"key": "0123ABCD-0000-4000-8000-00000000000F"},
            {"key": "0123abcd000040008000000000000000"},
            {"key": "0123abcd-0000-4000-8000-00000000000g"},
            {"lease_s": 30, "retention_s": 86_400},
            {"lease_s": 45, "retention_s": 86_401},
            {"lease_s": 12.5, "retention_s": 3600.25},
            {"fingerprint_version": 2, "schema_version": 7},
            {"recovery": "resume", "request": b"", "field_digests": {"amount": "ab"}},
            {"recovery": "block", "request": b"\x00request", "tenant": "other"},
        ]
        claims = [
            replace(usual, id=new_id(), token=new_token(), **way) for way in ways for _ in range(2)
        ]
        claims.sort(key=attrgetter("id"))
        store = case.subject.store

        outcomes = case.drive(store.perform([Insert(claim) for claim in claims]))
        assert [type(outcome) for outcome in outcomes] == [Inserted] * len(claims)
        for claim in claims:
            found = case.find(claim.id)
            kept = [getattr(found, field.name) for field in fields(Claim)[:-1]]
            assert kept == [getattr(claim, field.name) for field in fields(Claim)[:-1]]
            lasts_s = claim.lease_s + claim.retention_s
            assert found.expires_in_s == pytest.approx(lasts_s, abs=claim.lease_s)
            assert case.ask(Requested(claim.id)) == claim.request
        ends = [
            case.complete(case.find(claim.id), retention_s=claim.retention_s) for claim in claims
        ]
        assert [type(outcome) for outcome in case.drive(store.perform(ends))] == [Done] * len(ends)

    def test_bodies_beyond_the_byte_cap_are_all_kept(self, case: Case) -> None:
        bodies = [bytes((number,)) * (BATCH_BYTES_MAX // 5) for number in range(12)]
        records = [case.begin() for _ in bodies]
        swaps = [
            case.complete(record, Answer(200, (), body))
            for record, body in zip(records, bodies, strict=True)
        ]
        outcomes = case.together(swaps)
        assert outcomes == [Done(record.fence) for record in records]
        for record, body in zip(records, bodies, strict=True):
            assert case.find(record.id).answer == Answer(200, (), body)

    def test_verbs_of_every_kind_can_be_asked_at_once(self, case: Case) -> None:
        running = [case.begin() for _ in range(6)]
        ended = case.stage(State.COMPLETED)
        step = Step("charge", b"d", b"r")
        new = case.claim()
        verbs: list[Verb] = [
            Insert(new),
            Insert(case.rival(running[0])),
            case.renew(running[1]),
            case.complete(running[2]),
            case.release(running[3]),
            case.renew(ended),
            AppendStep(running[4].id, running[4].fence, running[4].token, step),
            Find(running[5].id),
            Find(new_id()),
            Peek(ended.id),
            Steps(ended.id),
            Requested(ended.id),
            Tally({running[5].id: 1}, {}),
            Due(10),
            Sweep(10),
            Scan(1),
            Count(),
            Purge("nobody", 10),
        ]
        outcomes = case.together(verbs)
        kinds = [Inserted, Found, Done, Done, Done, Refused, Done, Record, type(None)]
        assert [type(outcome) for outcome in outcomes[:9]] == kinds
        peeked, steps, requested, tallied, due, swept, scanned, counts, purged = outcomes[9:]
        assert (peeked.state, steps, requested) == (State.COMPLETED, [], None)
        assert (tallied, due, swept) == (None, [], 0)
        assert len(scanned) == 1
        assert set(counts) == set(State)
        assert purged == 0

    def test_swaps_that_fail_do_not_disturb_those_that_succeed(self, case: Case) -> None:
        good = [case.begin() for _ in range(10)]
        bad = [case.stage(State.RELEASED) for _ in range(10)]
        swaps = [case.complete(record) for pair in zip(good, bad, strict=True) for record in pair]
        outcomes = case.together(swaps)
        assert outcomes[::2] == [Done(record.fence) for record in good]
        for outcome, record in zip(outcomes[1::2], bad, strict=True):
            assert isinstance(outcome, Refused)
            assert outcome.record is not None
            case.same(outcome.record, record)

    def test_p8_take_overs_that_travel_together_are_judged_one_by_one(self, case: Case) -> None:
        lapsed = [case.begin() for _ in range(5)]
        case.lapse()
        live = [case.begin() for _ in range(5)]
        takes = [case.take(record) for pair in zip(lapsed, live, strict=True) for record in pair]
        outcomes = case.together(takes)
        assert [type(outcome) for outcome in outcomes] == [Done, Refused] * 5
        for outcome, record in zip(outcomes[1::2], live, strict=True):
            case.same(outcome.record, record)
            case.same(case.find(record.id), record)

    def test_one_id_twice_in_a_crowd_has_one_winner(self, case: Case) -> None:
        first = case.claim()
        second = case.claim(id=first.id)
        others = [case.claim() for _ in range(20)]
        outcomes = case.together([Insert(claim) for claim in (first, *others, second)])
        assert all(isinstance(outcome, Inserted) for outcome in outcomes[1:-1])
        pair = [outcomes[0], outcomes[-1]]
        assert {type(outcome) for outcome in pair} == {Inserted, Found}
        winner = first if isinstance(pair[0], Inserted) else second
        assert case.find(first.id).token == winner.token

    def test_a_chain_of_changes_to_one_record_keeps_its_order_of_outcomes(self, case: Case) -> None:
        """Renewals and one completion at once: the renewals that come after it are refused."""
        record = case.begin()
        verbs = [case.renew(record)] * 5 + [case.complete(record)] + [case.renew(record)] * 5
        outcomes = case.together(verbs)
        assert outcomes[5] == Done(record.fence)
        after = case.find(record.id)
        renewed = sum(isinstance(outcome, Done) for outcome in outcomes) - 1
        assert (after.state, after.beat) == (State.COMPLETED, renewed + 1)

    @pytest.mark.parametrize("text", AWKWARD.values(), ids=list(AWKWARD))
    def test_a_bad_member_fails_alone(self, case: Case, text: str) -> None:
        good = [case.claim() for _ in range(10)]
        bad = case.claim(tenant=text)
        outcomes = case.together([Insert(claim) for claim in (*good[:5], bad, *good[5:])])
        is_kept(case, bad, outcomes.pop(5))
        assert all(isinstance(outcome, Inserted) for outcome in outcomes), outcomes
        assert [case.find(claim.id).token for claim in good] == [claim.token for claim in good]

    @pytest.mark.parametrize("text", AWKWARD.values(), ids=list(AWKWARD))
    def test_after_a_bad_verb_the_store_goes_on(self, case: Case, text: str) -> None:
        for _ in range(3):
            bad = case.claim(tenant=text)
            [outcome] = case.together([Insert(bad)])
            is_kept(case, bad, outcome)
            assert case.done(case.complete(case.begin())).state is State.COMPLETED

    @pytest.mark.parametrize("text", AWKWARD.values(), ids=list(AWKWARD))
    def test_a_bad_completion_leaves_the_record_running(self, case: Case, text: str) -> None:
        """It may then be released, or completed with something that can be stored."""
        record, neighbour = case.begin(), case.begin()
        swaps = [case.complete(record, resource_id=text), case.complete(neighbour)]
        outcome, beside = case.together(swaps)
        assert beside == Done(neighbour.fence)
        if isinstance(outcome, Done):
            assert case.find(record.id).resource_id == text
        else:
            assert not isinstance(outcome, StoreUnavailable)
            case.same(case.find(record.id), record)
            case.done(case.release(record))

    def test_looking_for_what_cannot_be_there_finds_nothing_or_raises(self, case: Case) -> None:
        case.begin()
        for text in AWKWARD.values():
            scanned, purged = case.together([Scan(10, tenant=text), Purge(text, 10)])
            assert scanned == [] or isinstance(scanned, Exception)
            assert purged == 0 or isinstance(purged, Exception)
        assert case.ask(Count())[State.RUNNING] == 1
