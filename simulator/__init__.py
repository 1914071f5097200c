"""A deterministic simulator: the real engine under every kind of trouble, in virtual time.

What is real: the life of each attempt (`Session`), the engine beneath it (`Guard`, `Ownership`),
atomic mode's `AtomicOperation`, the life cycle, the memory store as the server, and the queue of
batches. What is simulated: processes, the heartbeat's thread, the network, clocks, clients,
handlers, and the transactions of a database. There is no event loop and no thread, so a seed is a
schedule, and the same seed is always the same schedule.

    python -m simulator --schedules 20000

    kernel                  virtual time; processes that pause and die
    scenario schema         what a schedule is about: policies, versions, clients
    plans steps endings     what handlers do, how they end, and what that must mean for a record
    previous_release        the engine of the release before, for rolling deployments
    upgrade                 the fingerprints of the release before, and this release in its place
    faults                  what goes wrong, drawn anew for every seed
    store_link              messages to the store and back, and the store
    database statements transaction    atomic mode: transactions, and what must hold at a commit
    worker application ports heartbeat recovery task    one process of the application
    clients                 they retry until they have an answer
    ghost oracle judge expiry violation    what must hold, told without looking into the system
    world                   one schedule
    campaign                many of them
    exhaustive              all of them, in a small world
    bugs parts              planted bugs that must be found
    coverage moves report timeline    what was covered, and what happened
"""

from simulator.campaign import Campaign, hunt, run
from simulator.coverage import Marks
from simulator.violation import Violation
from simulator.world import Played, play, playing

__all__ = ["Campaign", "Marks", "Played", "Violation", "hunt", "play", "playing", "run"]
