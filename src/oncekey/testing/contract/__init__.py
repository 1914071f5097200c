"""The contract of `oncekey.stores.base` as tests that every store has to pass, ours and yours.

Subclass `StoreContract` in a test module, under a name that pytest collects, and give it a
`subject`: your store, empty, and a way to let its time pass.

    import pytest
    from oncekey.testing.contract import StoreContract, Subject

    class TestMyStore(StoreContract):
        @pytest.fixture
        def subject(self, tmp_path):
            store = MyStore(tmp_path)                         # migrated, empty, for this test alone
            return Subject(store, elapse=store.pretend)       # pretend(60): a minute has passed

`elapse(seconds)` makes the store believe that time has passed or, with a negative number, that its
clock was set back. You can also shift every stored deadline and date the other way. A store that
observes leases passes `observed=True`, and lets its observer's time pass too. Without `elapse` the
suite really waits: it then takes minutes, and the tests of a clock that is set back are skipped.

Every test runs over both interfaces of the store: `Gatherer` for threads and `AsyncGatherer` for
event loops. A failing test's name is the sentence of the contract that the store breaks. To run one
part alone, subclass its class, for example `InsertContract`.
"""

import pytest

_MODULES = (
    "batches content fences insert opening purge races repeats requests steps subject swap sweep "
    "times watch"
)
pytest.register_assert_rewrite(*(f"{__name__}.{name}" for name in _MODULES.split()))

# ruff: noqa: E402  (pytest explains a failed assertion only in modules that are imported after)
from oncekey.testing.contract.batches import BatchContract
from oncekey.testing.contract.content import ContentContract
from oncekey.testing.contract.fences import FenceContract
from oncekey.testing.contract.insert import InsertContract
from oncekey.testing.contract.opening import OpeningContract
from oncekey.testing.contract.purge import PurgeContract
from oncekey.testing.contract.races import RaceContract
from oncekey.testing.contract.repeats import RepeatContract
from oncekey.testing.contract.requests import RequestContract
from oncekey.testing.contract.steps import StepContract
from oncekey.testing.contract.subject import Case, Contract, Subject
from oncekey.testing.contract.swap import SwapContract
from oncekey.testing.contract.sweep import SweepContract
from oncekey.testing.contract.times import TimeContract
from oncekey.testing.contract.watch import WatchContract

__all__ = [
    "BatchContract",
    "Case",
    "ContentContract",
    "Contract",
    "FenceContract",
    "InsertContract",
    "OpeningContract",
    "PurgeContract",
    "RaceContract",
    "RepeatContract",
    "RequestContract",
    "StepContract",
    "StoreContract",
    "Subject",
    "SwapContract",
    "SweepContract",
    "TimeContract",
    "WatchContract",
]


class StoreContract(
    OpeningContract,
    InsertContract,
    SwapContract,
    FenceContract,
    RepeatContract,
    TimeContract,
    StepContract,
    RequestContract,
    WatchContract,
    SweepContract,
    PurgeContract,
    ContentContract,
    BatchContract,
    RaceContract,
):
    """The whole contract."""
