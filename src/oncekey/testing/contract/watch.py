"""Reads that change nothing: find, peek, tally, scan and count."""

from __future__ import annotations

import dataclasses

import pytest

from oncekey._core.record import Answer, Claim, Glimpse, Record, State
from oncekey._core.verbs import Count, Find, Peek, Scan, Tally
from oncekey.testing.contract.subject import ANSWER, Case, Contract, new_id


class WatchContract(Contract):
    # ------------------------------------------------------------------------- find and peek

    def test_of_nothing_nothing_is_found(self, case: Case) -> None:
        assert case.ask(Find(new_id())) is None
        assert case.ask(Peek(new_id())) is None

    @pytest.mark.parametrize("state", State)
    def test_a_glimpse_tells_the_state_and_the_fence(self, case: Case, state: State) -> None:
        record = case.stage(state)
        glimpse = case.ask(Peek(record.id))
        assert isinstance(glimpse, Glimpse)
        assert (glimpse.state, glimpse.fence) == (state, record.fence)
        if state is State.RUNNING:
            assert glimpse.lease_left_s == case.about(case.lease_s)

    def test_what_was_acknowledged_is_seen_by_everybody_at_once(self, case: Case) -> None:
        """Never a replica's view: read on another connection, right after the write."""
        for _ in range(5):
            record = case.begin()
            case.done(case.complete(record))
            found = case.together([Find(record.id)] * 3, gatherers=3)
            assert [each.state for each in found] == [State.COMPLETED] * 3

    def test_looking_changes_nothing(self, case: Case) -> None:
        record = case.begin()
        case.elapse(case.lease_s / 2)
        before = case.find(record.id)
        case.ask(Peek(record.id))
        case.ask(Scan(10))
        case.ask(Count())
        case.same(case.find(record.id), before)

    # --------------------------------------------------------------------------------- tally

    def test_tallies_add_up(self, case: Case) -> None:
        one, two = case.begin(), case.begin()
        case.ask(Tally(replays={one.id: 2, two.id: 1}, conflicts={one.id: 5}))
        case.ask(Tally(replays={one.id: 3}, conflicts={two.id: 1}))
        assert _counters(case, one) == (5, 5)
        assert _counters(case, two) == (1, 1)

    def test_a_tally_of_nothing_or_of_what_is_gone_is_no_error(self, case: Case) -> None:
        assert case.ask(Tally({}, {})) is None
        gone, there = new_id(), case.begin()
        case.ask(Tally(replays={gone: 1, there.id: 1}, conflicts={gone: 1}))
        assert case.ask(Find(gone)) is None
        assert _counters(case, there) == (1, 0)

    @pytest.mark.parametrize("state", State)
    def test_a_tally_changes_nothing_else(self, case: Case, state: State) -> None:
        record = case.stage(state)
        case.elapse(case.lease_s / 2)
        before = case.find(record.id)
        case.ask(Tally(replays={record.id: 1}, conflicts={record.id: 2}))
        case.same(case.find(record.id), dataclasses.replace(before, replays=1, conflicts=2))

    def test_tallies_at_the_same_time_lose_nothing(self, case: Case) -> None:
        ids = [case.begin().id for _ in range(5)]
        backwards = dict.fromkeys(reversed(ids), 1)
        tallies = [Tally(dict.fromkeys(ids, 1), {}), Tally(backwards, {})] * 8
        assert case.together(tallies, gatherers=2) == [None] * 16
        assert [case.find(record_id).replays for record_id in ids] == [16] * 5

    # ------------------------------------------------------------------------ scan and count

    def test_an_empty_store_holds_nothing(self, case: Case) -> None:
        assert case.ask(Scan(10)) == []
        assert case.ask(Count()) == dict.fromkeys(State, 0)

    def test_every_state_is_counted(self, case: Case) -> None:
        for number, state in enumerate(State, start=1):
            for _ in range(number):
                case.stage(state)
        assert case.ask(Count()) == {state: n for n, state in enumerate(State, start=1)}

    def test_a_scan_goes_through_all_in_pages_by_id(self, case: Case) -> None:
        ids = sorted(case.begin().id for _ in range(7))
        seen: list[bytes] = []
        sizes = []
        while page := case.ask(Scan(3, after=seen[-1] if seen else b"")):
            seen += [record.id for record in page]
            sizes.append(len(page))
        assert seen == ids
        assert sizes == [3, 3, 1]

    def test_ids_are_ordered_as_bytes(self, case: Case) -> None:
        first = [0x00, 0x01, 0x2F, 0x41, 0x61, 0x7F, 0x80, 0xC3, 0xFF]
        ids = [bytes((byte,)) * 32 for byte in first]
        for record_id in reversed(ids):
            case.begin(case.claim(id=record_id))
        assert [record.id for record in case.ask(Scan(100))] == ids
        assert [record.id for record in case.ask(Scan(100, after=ids[5]))] == ids[6:]

    def test_a_scan_leaves_bodies_out_and_all_else_in(self, case: Case) -> None:
        record = case.stage(State.COMPLETED)
        [scanned] = case.ask(Scan(10))
        assert scanned.answer == Answer(ANSWER.status, ANSWER.headers, None)
        case.same(dataclasses.replace(scanned, answer=record.answer), record)

    def test_a_scan_can_be_narrowed_to_a_state_or_a_tenant(self, case: Case) -> None:
        def stage(state: State, tenant: str) -> bytes:
            claim: Claim = case.claim(tenant=tenant)
            return case.stage(state, claim).id

        mine = stage(State.COMPLETED, "mine")
        mine_too = stage(State.RELEASED, "mine")
        theirs = stage(State.COMPLETED, "theirs")

        def ids_of(scan: Scan) -> set[bytes]:
            return {record.id for record in case.ask(scan)}

        assert ids_of(Scan(10, state=State.COMPLETED)) == {mine, theirs}
        assert ids_of(Scan(10, tenant="mine")) == {mine, mine_too}
        assert ids_of(Scan(10, tenant="mine", state=State.COMPLETED)) == {mine}
        assert ids_of(Scan(10, tenant="min")) == set()
        assert ids_of(Scan(10, state=State.UNKNOWN)) == set()

    def test_a_narrowed_scan_fills_its_pages(self, case: Case) -> None:
        """The limit counts what is returned, not what is looked at."""
        kept = []
        for number in range(12):
            record = case.begin(case.claim(id=bytes((number,)) * 32))
            if number % 4 == 3:
                case.done(case.complete(record))
                kept.append(record.id)
        page = case.ask(Scan(2, state=State.COMPLETED))
        assert [record.id for record in page] == kept[:2]
        rest = case.ask(Scan(2, after=page[-1].id, state=State.COMPLETED))
        assert [record.id for record in rest] == kept[2:]


def _counters(case: Case, record: Record) -> tuple[int, int]:
    found = case.find(record.id)
    return found.replays, found.conflicts
