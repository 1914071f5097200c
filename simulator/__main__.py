"""The command: `./dev simulate`, or `python -m simulator`."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Sequence
from itertools import repeat

from oncekey._system.clock import SystemClock
from simulator import campaign as campaigns
from simulator.bugs import BUGS
from simulator.coverage import Marks
from simulator.exhaustive import CASES, explore_named
from simulator.parts import REAL, Parts
from simulator.report import Progress, coverage, summary
from simulator.world import Played, play, playing

_ABOUT = """\
Drive the real engine through seeded schedules of messages, crashes, pauses and clock jumps, and
check every promise. A seed that breaks one is printed with its timeline; the same seed is always
the same schedule.
"""
_EXAMPLES = """\
  ./dev simulate --schedules 200000            seeds 0 to 199,999 on every core
  ./dev simulate --seed 4711 --timeline        show one schedule
  ./dev simulate --bug complete-without-fence  plant a bug and find it
  ./dev simulate --bugs                        all of them
  ./dev simulate --exhaustive --faults 2       every schedule of two workers and one key
"""
_TIMELINE_LINES_MAX = 400
_CAST_LINES = 3


def main(words: Sequence[str] | None = None) -> int:
    """0 if every promise was kept, or the planted bug was found."""
    args = _parser().parse_args(words)
    if args.bugs:
        return _bugs()
    parts = BUGS[args.bug].parts() if args.bug else REAL
    if args.exhaustive:
        return _exhaustive(args.bug or "", args.faults, args.processes)
    if args.schedules is None and args.seed is not None:
        return _one(args.seed, parts, timeline=args.timeline, planted=bool(args.bug))
    if args.bug:
        return _bug(args.bug, args.seed or 0, args.schedules or BUGS[args.bug].seeds)
    return _campaign(args.seed or 0, args.schedules or 20_000, args.processes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev simulate",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--schedules", type=_some, metavar="N", help="how many; 20,000 unless told")
    add("--seed", type=int, metavar="S", help="the first seed; without --schedules: this one alone")
    add("--timeline", action="store_true", help="with --seed: what happened, line by line")
    add("--bug", choices=sorted(BUGS), metavar="NAME", help="plant this bug")
    add("--bugs", action="store_true", help="plant every bug in turn; list them and what they do")
    add("--exhaustive", action="store_true", help="every schedule of a small world")
    add("--faults", type=int, default=2, metavar="N", help="with --exhaustive: at most so many")
    add("--processes", "--workers-processes", type=int, default=0, metavar="N", help="cores to use")
    return parser


def _some(text: str) -> int:
    """Of none every promise would have been kept."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("must be a number, from 1 up")
    return int(text)


def _campaign(seed: int, schedules: int, processes: int) -> int:
    clock = SystemClock()
    started = clock.monotonic()
    result = campaigns.run(seed, schedules, processes=processes, progress=Progress(schedules))
    print(coverage(result.marks))
    print()
    print(summary(result, clock.monotonic() - started))
    if result.failures:
        first = min(result.failures)[0]
        print(f"\n./dev simulate --seed {first} --timeline\n")
        _show(_replay(first, REAL))
    return 1 if result.failures else 0


def _replay(seed: int, parts: Parts) -> Played:
    marks = Marks()
    with playing(parts, marks):
        return play(seed, marks, parts, written=True)


def _show(played: Played) -> None:
    lines = list(played.timeline)
    if left_out := max(len(lines) - _TIMELINE_LINES_MAX, 0):
        lines[_CAST_LINES : _CAST_LINES + left_out] = [f"   ... {left_out} lines left out ..."]
    print("\n".join(lines))
    print(f"\nBROKEN {played.violation}" if played.violation else "\nEvery promise was kept.")


def _one(seed: int, parts: Parts, *, timeline: bool, planted: bool) -> int:
    played = _replay(seed, parts)
    _show(played if timeline else dataclasses.replace(played, timeline=()))
    print(f"seed {seed}, schedule {played.digest.hex()}, {played.faults} faults")
    return int(bool(played.violation) != planted)


def _bug(name: str, seed: int, schedules: int) -> int:
    bug = BUGS[name]
    print(f"{name}: {bug.story}\n")
    parts, marks = bug.parts(), Marks()
    with playing(parts, marks):
        for number, one in enumerate(range(seed, seed + schedules), start=1):
            if play(one, marks, parts).violation:
                _show(play(one, marks, parts, written=True))
                print(f"Found by seed {one}, after {number} schedules.")
                return 0
    print(f"NOT FOUND within {schedules} schedules: the simulator is blind to it.")
    return 1


def _bugs() -> int:
    blind = 0
    width = max(map(len, BUGS))
    for name, bug in BUGS.items():
        found = campaigns.hunt(name, bug.seeds)
        if found is None:
            blind += 1
            print(f"{name:<{width}}  NOT FOUND within {bug.seeds} seeds")
        else:
            seed, violation = found
            print(f"{name:<{width}}  {seed + 1:>5} seeds  {violation}", flush=True)
    print(f"\n{len(BUGS) - blind} of {len(BUGS)} planted bugs were found.")
    return 1 if blind else 0


def _exhaustive(bug: str, faults_max: int, processes: int) -> int:
    print(f"Two workers, one key, at most {faults_max} faults, every order:", flush=True)
    names = [case.name for case in CASES]
    broken = 0
    with campaigns.processes_of(processes) as pool:
        explored = pool.map(explore_named, names, repeat(faults_max), repeat(bug))
        for one in explored:
            print(f"  {one.case:<18} {one.schedules:>10,} schedules: {one.end}", flush=True)
            if one.failed is not None:
                broken += 1
                print("\n".join(one.failed.timeline))
                print(f"  choices: {one.path}")
    return int(bool(broken) != bool(bug))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read along has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
