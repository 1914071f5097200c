"""Virtual time, and processes that pause and die."""

from oncekey._core.op import Op, Pause
from simulator.coverage import Marks
from simulator.exhaustive import CASES, Calm, Choices, Explorer, SmallWorld, scenario
from simulator.kernel import Kernel, Process
from simulator.parts import REAL
from simulator.world import World


def test_what_is_due_first_happens_first_and_equals_keep_their_order() -> None:
    kernel, process, seen = Kernel(), Process("p"), list[tuple[str, float]]()

    def see(name: str) -> None:
        seen.append((name, kernel.now))

    kernel.at(2.0, process, see, "late")
    kernel.at(1.0, process, see, "one")
    kernel.at(1.0, process, see, "two")
    kernel.at(9.0, process, see, "beyond")
    kernel.run(until=5.0)

    assert seen == [("one", 1.0), ("two", 1.0), ("late", 2.0)]


def test_a_paused_process_does_what_it_had_to_do_later_and_in_order() -> None:
    kernel, process, seen = Kernel(), Process("p"), list[tuple[str, float]]()
    process.paused_until = 7.0
    for name, at in (("one", 1.0), ("two", 2.0)):
        kernel.at(at, process, lambda name=name: seen.append((name, kernel.now)))
    kernel.run(until=10.0)

    assert seen == [("one", 7.0), ("two", 7.0)]


def test_a_killed_process_does_nothing_any_more() -> None:
    kernel, process, seen = Kernel(), Process("p"), list[str]()
    kernel.at(1.0, process, seen.append, "never")
    process.life += 1
    kernel.at(2.0, process, seen.append, "the next incarnation")
    kernel.run(until=10.0)

    assert seen == ["the next incarnation"]


def _world() -> World:
    kernel = Explorer(Choices(), faults_max=0)
    calm = Calm(lambda: 0.5)
    world = SmallWorld(kernel, scenario(CASES[0]), calm, lambda: 0.5, REAL, Marks())
    world.case = CASES[0]
    kernel.world = world
    return world


def test_a_crash_runs_no_finally() -> None:
    world, ran = _world(), list[str]()
    worker = world.workers[0]

    def busy() -> Op[None]:
        try:
            yield Pause(100.0)
        finally:
            ran.append("finally")

    task = worker.task("busy", world.clients[0])
    task.op = busy()
    worker.begin(task)
    worker.crash()
    world.run()

    assert not ran
    assert not worker.tasks
