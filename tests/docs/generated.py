"""The parts of the documentation that are written by the code: `./dev docs` writes them anew.

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`. The recordings of the explainer
page are written as well (`tests/payments/explainer.py`).
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from oncekey._core.endings import FATES, RECOVERIES, End, Fate
from oncekey._core.fingerprint import Comparison
from oncekey._core.lifecycle import DECISIONS, TRANSITIONS, Action, Situation, recover
from oncekey._core.policy import Policy, Verdict
from oncekey._core.problems import MEANINGS, Kind, Problem
from oncekey._core.profiles import PROFILES, BodyField, Header, Profile, render
from oncekey._core.verbs import When
from oncekey.client._classify import Final, Mismatched, RetryLater, WholeResponse, classify
from oncekey.stores.base import Durability
from oncekey.stores.redis import checks
from oncekey.stores.urls import open_store
from tests.docs import engines
from tests.docs.pages import PAGES, ROOT
from tests.payments import explainer

_PART = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


# -------------------------------------------------------------------------------- lifecycle


def states() -> str:
    """The state machine, as a diagram that GitHub and others draw."""
    conditions = {
        When.ANY: "",
        When.LAPSED: " (lapsed)",
        When.EXPIRED: " (expired)",
        When.OVERLONG: " (deadline too far away)",
    }
    arrows = ["[*] --> running: claim ↑"]
    for name, move in TRANSITIONS.items():
        label = name + conditions[move.when] + (" ↑" if move.raise_fence else "")
        arrows += (f"{source} --> {move.to}: {label}" for source in move.sources)
    return "```mermaid\nstateDiagram-v2\n" + "".join(f"    {each}\n" for each in arrows) + "```\n"


def decisions() -> str:
    """What a request gets, by what it found."""
    compared = (Comparison.SAME, Comparison.DIFFERENT, Comparison.UNKNOWN_VERSION)
    return table(
        ("found", "same request", "other request", "fingerprint of another release"),
        (
            (found.value, *(DECISIONS[found, comparison].value for comparison in compared))
            for found in Situation
        ),
    )


# ------------------------------------------------------------------------------ reference


def endings() -> str:
    """How an attempt ended, and what a retry gets."""
    head = ("the attempt ended with", *(f"`{recovery}`" for recovery in RECOVERIES))
    rows = [[end.value, *(FATES[end, each].value for each in RECOVERIES)] for end in End]
    died = ["the death of its process, after one lease", *map(_after_death, RECOVERIES)]
    return table(head, [*rows, died])


_AFTER_DEATH = {
    Action.RUN_AGAIN: "a new run; under `resume` without the steps that are done",
    Action.ASK: "what your `ask` function finds out",
    Action.DOUBT: Fate.GIVE_UP.value,
}


def _after_death(recovery: Any) -> str:
    """What a retry gets that finds a lapsed record."""
    policy = Policy(recovery=recovery, ask=str if recovery == "ask" else None).settled()
    lapsed: Any = SimpleNamespace(recovery=recovery)
    return _AFTER_DEATH[recover(lapsed, policy)]


def kinds() -> str:
    """Every refusal with its status."""
    rows = (
        (f"[{kind}](#{kind})", str(MEANINGS[kind].status), MEANINGS[kind].title) for kind in Kind
    )
    return table(("kind", "status", "says"), rows)


def profiles() -> str:
    """What distinguishes the profiles."""
    return table(
        ("profile", "key in", "key", "scope", "methods", "in flight", "mismatch", "kept", "for"),
        map(_profile, PROFILES.values()),
    )


def _profile(profile: Profile) -> list[str]:
    policy = profile.policy.settled()
    waits = f"waits {policy.wait_s:g} s, then " if policy.in_flight == "wait" else ""
    start = "" if profile.retention_from == "completion" else " from first use"
    key = "a UUID" if profile.uuid_only else f"up to {profile.key_chars_max} characters"
    return [
        f"[{profile.name}](#{profile.name})",
        _place(profile),
        key + (", in either case" if profile.case_insensitive else ""),
        policy.scope,
        ", ".join(sorted(policy.methods)),
        f"{waits}{profile.status(Kind.IN_FLIGHT)}",
        str(profile.status(Kind.MISMATCH)),
        _kept(policy.keep),
        _duration(policy.retention_s) + start,
    ]


def _place(profile: Profile) -> str:
    match profile.key_in:
        case Header(name):
            return f"header `{name}`"
        case BodyField(name):
            return f"body field `{name}`"
        case other:
            return f"query parameter `{other.name}`"


def _kept(keep: Callable[[int], Verdict]) -> str:
    kept = [
        name
        for name, status in (("2xx", 200), ("3xx", 303), ("4xx", 422), ("5xx", 500))
        if keep(status) is Verdict.KEEP
    ]
    return ", ".join(kept)


def _duration(seconds: float) -> str:
    unit, name = (3_600, "hour") if seconds >= 3_600 else (60, "minute")
    return f"{seconds / unit:g} {name}{'' if seconds == unit else 's'}"


def durability() -> str:
    """What each store says that it survives."""
    opened = {
        url: open_store(url).durability
        for url in (
            "sqlite:///keys.db",
            "sqlite:///keys.db?synchronous=NORMAL",
            "sqlite:///keys.db?synchronous=OFF&allow=unsafe-durability",
            "postgresql://host/database",
            "postgresql://host/database?allow=unsafe-durability",
            "mysql://user@host/database",
            "mysql://user@host/database?allow=unsafe-durability",
            "dynamodb://table?region=eu-central-1",
            "dynamodb://table?endpoint=http://host:4566",
        )
    }
    servers = {
        "redis://, `appendonly yes`, `appendfsync always`": ("1", "always"),
        "redis://, `appendonly yes`, `appendfsync everysec`": ("1", "everysec"),
        "redis://, `appendonly no`, `allow=unsafe-durability`": ("0", None),
    }
    for name, (aof, appendfsync) in servers.items():
        opened[name] = checks.durability({"aof_enabled": aof}, appendfsync)
    opened["memory://"] = open_store("memory://").durability
    head = ("store and setting", "application dies", "store dies", "power is lost", "in words")
    return table(head, (_durability(name, each) for name, each in opened.items()))


def _durability(name: str, durability: Durability) -> list[str]:
    kept = (durability.process_crash, durability.store_crash, durability.power_loss)
    shown = [f"`{name}`" if "`" not in name else name.replace("redis://", "`redis://`")]
    return [*shown, *("kept" if each else "may be lost" for each in kept), durability.note]


def allowed() -> str:
    """What can be accepted by name."""
    return table(("in the URL", "of", "accepts that"), engines.accepted())


def compared() -> str:
    """Every engine: what it promises, what settings can lose, what a record costs."""
    head = (
        *("engine", "promises", "what each setting can lose, and what is done about it at a start"),
        f"one record with an answer of {engines.ANSWER_BYTES} bytes",
    )
    return table(head, engines.side_by_side()) + "\n" + engines.measured()


def planned() -> str:
    """What `oncekey plan` says."""
    return engines.plan()


# --------------------------------------------------------------------------------- clients

MOVES = {
    Kind.MISSING_KEY: "yours: that request left without our client, or is mounted elsewhere",
    Kind.INVALID_KEY: "yours: the key that you gave is none",
    Kind.NO_TENANT: "yours: authenticate; the key is not spent",
    Kind.MALFORMED_REQUEST: "yours: the request is wrong; the key is not spent",
    Kind.TOO_LARGE: "yours: the request is too large; the key is not spent",
    Kind.MISMATCH: "yours: one key was used for two intents",
    Kind.IN_FLIGHT: "the client's: it waits and asks again",
    Kind.OUTCOME_UNKNOWN: "the service's operator's; do not send it under a new key",
    Kind.ANSWER_NOT_KEPT: "yours: it was done, read what it created (`Location`)",
    Kind.STALE_ANSWER: "yours: it was done, read what it created",
    Kind.NEWER_RECORD: "the client's: a release is being rolled out there",
    Kind.TOO_OLD: "yours: find out whether it was done before you use a new key",
    Kind.KEY_EXPIRED: "yours: it was done, read what it created",
    Kind.OVER_QUOTA: "the client's; if it lasts, yours: fewer requests, or a larger quota",
    Kind.NO_ROOM: "the client's; if it lasts, the service's operator's",
    Kind.STORE_UNAVAILABLE: "the client's; if it lasts, the service's operator's",
    Kind.TRANSACTION_ENDED: "the service's developer's; do not send it again before",
    Kind.UNSETTLED: "the client's: it waits and asks again",
    Kind.NOT_FOUND: "yours: nothing is known of this key there",
}


def moves() -> str:
    """Every refusal, what our client does with it, and whose move it is."""
    head = ("refusal", "status", "it says", "our client", "whose move")
    return table(head, (_move(kind) for kind in Kind))


def _move(kind: Kind) -> list[str]:
    meaning, profile = MEANINGS[kind], PROFILES["oncekey"]
    problem = Problem(kind, "…", retryable=meaning.advice.startswith("Wait"))
    answer = render(problem, profile)
    headers = {name.decode(): text.decode() for name, text in answer.headers}
    verdict = classify(WholeResponse(answer.status, headers, answer.body or b""), profile, 0.0)
    does = {
        RetryLater: "sends it again, same key",
        Mismatched: "raises `Mismatch` at once",
        Final: "gives you the answer",
    }[type(verdict)]
    link = f"[{kind}](words.md#{kind})"
    return [link, str(meaning.status), meaning.title, does, MOVES[kind]]


def relied() -> str:
    """How long keys can be counted on, by profile."""
    rows = ((f"`{name}`", _duration(profile.relied_s)) for name, profile in PROFILES.items())
    return table(("profile", "counted on for"), rows)


# ----------------------------------------------------------------------------------- rooms

PACKAGE = ROOT / "src" / "oncekey"
_NOT_DRAWN = {"__init__", "__main__", "clock", "core", "probes", "recoverer"}
"""What only starts the command, and the deprecated names."""


def rooms() -> str:
    """Which rooms import which, without the arrows that follow from others."""
    arrows = "".join(
        f"    {room} --> {' & '.join(sorted(imported))}\n"
        for room, imported in reduced(room_imports()).items()
    )
    return f"```mermaid\nflowchart TD\n{arrows}```\n"


def room_imports() -> dict[str, set[str]]:
    """The rooms that each room imports, highest layers first."""
    contract = _contracts()[0]
    order = re.findall(r"\w+", " ".join(contract["layers"]))
    ignored = {tuple(pair.split(" -> ")) for pair in contract.get("ignore_imports", [])}
    edges: dict[str, set[str]] = {room: set() for room in order if room not in _NOT_DRAWN}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        module = ".".join(("oncekey", *parts)).removesuffix(".__init__")
        for name in imports(ast.parse(path.read_text())):
            package, _, imported = name.partition(".")
            room = imported.partition(".")[0]
            is_ignored = any(
                module == importer and f"{name}.".startswith(f"{target}.")
                for importer, target in ignored
            )
            if package == "oncekey" and parts[0] in edges and room in edges and not is_ignored:
                edges[parts[0]].add(room)
    return {room: imported - {room} for room, imported in edges.items()}


def imports(tree: ast.AST) -> Iterator[str]:
    """What a module imports when it runs, by full names."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                continue
            case ast.Import(names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module, names):
                yield from (f"{module}.{each.name}" for each in names)
            case _:
                yield from imports(node)


def reduced(edges: dict[str, set[str]]) -> dict[str, set[str]]:
    """The fewest edges from which the others follow."""
    return {
        start: {end for end in ends if not any(end in _reached(edges, via) for via in ends - {end})}
        for start, ends in edges.items()
        if ends
    }


def _reached(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        ends = edges[left.pop()] - found
        found |= ends
        left += ends
    return found


def layers() -> str:
    """Which rooms may import which, as import-linter is told."""
    return _layers(0)


def engine_layers() -> str:
    """Which modules of the engine may import which."""
    return _layers(1)


def _layers(contract: int) -> str:
    return "```text\n" + "\n".join(_contracts()[contract]["layers"]) + "\n```\n"


def _contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    contracts: list[dict[str, Any]] = settings["contracts"]
    return contracts


PARTS: dict[str, Callable[[], str]] = {
    part.__name__: part
    for part in (
        *(states, decisions, endings, kinds, profiles, durability, allowed, compared, planned),
        *(moves, relied, rooms, layers, engine_layers),
    )
}


def renewed(text: str) -> str:
    """A page with its generated parts as the code has them now."""
    return _PART.sub(lambda found: found[1] + PARTS[found[2]]() + found[4], text)


def main() -> None:
    for name, path in PAGES.items():
        text = path.read_text()
        if (now := renewed(text)) != text:
            path.write_text(now)
            sys.stdout.write(f"{name} is up to date again\n")
    if explainer.renew():
        sys.stdout.write(f"{explainer.PATH.relative_to(ROOT)} is up to date again\n")


if __name__ == "__main__":
    main()
