"""A deterministic simulator: the real engine under every kind of trouble, in virtual time.

What is real: the engine's generators (`Guard.begin`, `finish`, `abandon`, `forget`, the heartbeat's
renewals, atomic mode's `Work`) with the life cycle underneath, the memory store as the server, and
the gatherer's queue. What is simulated: processes, the network, clocks, clients, handlers, and the
transactions of a database. There is no event loop and
no thread, so a seed is a schedule, and the same seed is always the same schedule.

    python -m simulator --schedules 20000

    kernel        virtual time; processes that pause and die
    scenario      what a schedule is about: policies, clients
    plans endings what handlers do, how they end, and what that must mean for a record
    earlier       the engine of the release before, for rolling deployments
    upgrade       the fingerprints of the release before, and this release in its place
    faults        what goes wrong, drawn anew for every seed
    wire          messages to the store and back, and the store
    database statements transaction    atomic mode: transactions, and what must hold at a commit
    worker edge heart task    one process of the application
    clients       they retry until they have an answer
    ghost oracle judge        what must hold, told without looking into the system
    world         one schedule
    campaign      many of them
    exhaustive    all of them, in a small world
    bugs parts    planted bugs that must be found
    marks report timeline     what was covered, and what happened
"""

from simulator.campaign import Campaign, hunt, run
from simulator.coverage import Marks
from simulator.violation import Violation
from simulator.world import Played, play, playing

__all__ = ["Campaign", "Marks", "Played", "Violation", "hunt", "play", "playing", "run"]
