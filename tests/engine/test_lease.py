"""The lease of an attempt: its phases, and that a loss is noted once."""

import pytest

from oncekey._engine.lease import CONCLUDED, MOVES, RENEWED, Lease, Phase


@pytest.mark.parametrize("to", Phase)
@pytest.mark.parametrize("phase", Phase)
def test_a_phase_is_followed_by_those_that_the_table_names(phase: Phase, to: Phase) -> None:
    lease = Lease(0.0, phase)
    if to in MOVES[phase]:
        lease.move(to)
        assert lease.phase is to
    else:
        with pytest.raises(AssertionError, match=f"{phase.name} is not followed by {to.name}"):
            lease.move(to)
        assert lease.phase is phase


def test_every_phase_leads_to_the_end_and_none_leads_back() -> None:
    order = list(Phase)
    for phase, nexts in MOVES.items():
        assert Phase.ENDED in nexts
        assert all(order.index(to) > order.index(phase) for to in nexts if to is not phase)
    assert not {Phase.DROPPED, Phase.ENDED} & set(RENEWED)
    assert set(CONCLUDED) == {Phase.LINGERING, Phase.ENDED}


@pytest.mark.parametrize("phase", Phase)
def test_what_has_not_ended_can_be_lost_once(phase: Phase) -> None:
    lease = Lease(0.0, phase)
    assert lease.lose() is (phase is not Phase.ENDED)
    assert lease.is_lost is (phase is not Phase.ENDED)
    assert not lease.lose()


def test_of_two_threads_that_note_a_loss_one_does() -> None:
    told: list[bool] = []

    class Raced(Lease):
        @property
        def is_lost(self) -> bool:
            if not told:
                told.append(False)  # meanwhile, in another thread
                told[0] = super().lose()
            return False

        @is_lost.setter
        def is_lost(self, _: bool) -> None: ...

    assert [Raced(0.0).lose(), *told] == [False, True]
