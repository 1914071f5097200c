"""The crash tests run on every store on which several processes can meet, as it is and sealed, and
in processes of both colours.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.child import Child
from tests.crash.server import SECRETS
from tests.places import PLACES, SEALED, Place, met_at

COLOURS = {"async": "tests.crash.server", "sync": "tests.crash.wsgi"}
_ALL = list(itertools.product((*PLACES, *(SEALED + name for name in PLACES)), COLOURS))
# What runs each time; all else is for the long run.
_USUAL = [(name, "async") for name in ("sqlite", "postgres", "redis", "mariadb", "mysql")]
_USUAL += [("sqlite", "sync")]
_FEW = (
    "test_p6_a_killed_process_is_taken_over",
    "test_p2_a_frozen_process_wakes_and_changes_nothing",
    "test_p6_killed_while_it_renews",
    "test_p2_frozen_while_it_renews_and_taken_over",
)
"""Of DynamoDB only these: its client alone takes a process a good part of a second."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    few = metafunc.function.__name__ in _FEW

    def marked(name: str, colour: str = "async") -> list[pytest.MarkDecorator]:
        usual = (name, colour) in _USUAL or (few and (name, colour) == ("dynamodb", "async"))
        return [] if usual else [pytest.mark.long]

    if "colour" in metafunc.fixturenames:
        pairs = [pytest.param(*pair, marks=marked(*pair)) for pair in _ALL]
        metafunc.parametrize(("place", "colour"), pairs, indirect=True)
    elif "place" in metafunc.fixturenames and "adapter" not in metafunc.fixturenames:
        names = [
            pytest.param(name, marks=marked(name)) for name, colour in _ALL if colour == "async"
        ]
        metafunc.parametrize("place", names, indirect=True)


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    with met_at(request.param, request, tmp_path) as place:
        if place.secrets is not None:
            monkeypatch.setenv(SECRETS, place.secrets)
        yield place


@pytest.fixture
def colour(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether the process that dies serves from an event loop or from threads."""
    monkeypatch.setattr(Child, "program", COLOURS[request.param])
    return str(request.param)
