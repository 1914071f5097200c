"""The words of the command line: what is taken, what is refused, and the help."""

import re
from pathlib import Path

import pytest

from oncekey.cli.parser import parser
from tests.cli.conftest import Oncekey, Seed

ROOT = Path(__file__).parent.parent.parent
COMMANDS = (
    *("migrate", "sweep", "recover", "show", "list", "resolve", "count", "purge", "intents"),
    *("secrets", "amnesia", "doctor", "plan"),
)


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("polish",),
        ("show",),
        ("show", "--id", "abcd", "--key", "k"),
        ("show", "--key", "k"),
        ("show", "--id", "xyz"),
        ("show", "--id", ""),
        ("show", "--id", "abc"),
        ("show", "--id", "a" * 65),
        ("list", "--state", "sleeping"),
        ("list", "--limit", "0"),
        ("list", "--limit", "-1"),
        ("list", "--limit", "many"),
        ("list", "--after", "not hex"),
        ("list", "--tenant", "\udcff"),
        ("sweep", "--every-s", "0"),
        ("sweep", "--every-s", "nan"),
        ("purge",),
        ("purge", "--tenant", "\udcff"),
        ("amnesia", "--until", "0001-01-01T00:00:00+14:00"),
        ("list", "--state", "unknown", "--unknown"),
        ("recover",),
        ("recover", "shop"),
        ("recover", ".shop:app"),
        ("recover", "no_such_module_here:app"),
        ("recover", "tests.places:no_such_app"),
        ("recover", "--concurrency", "0", "shop:app"),
        ("resolve", "abcd"),
        ("resolve", "abcd", "--as", "finished"),
        ("resolve", "abcd", "--as", "released"),
        ("resolve", "abcd", "--as", "released", "--reason", "r", "--status", "201"),
        ("resolve", "abcd", "--as", "completed"),
        ("resolve", "abcd", "--as", "completed", "--status", "99", "--body", ""),
        ("resolve", "abcd", "--as", "completed", "--status", "200", "--body", "@/no/file"),
        ("resolve", "a/b", "--as", "released", "--reason", "r"),
    ],
)
def test_wrong_usage_is_2_and_said_on_stderr(
    oncekey: Oncekey, seed: Seed, words: tuple[str, ...]
) -> None:
    seed.completed("order-17")  # without a store, everything is wrong

    ran = oncekey(*words)

    assert ran.code == 2
    assert ran.out == ""
    assert ran.err


def test_p12_a_url_too_many_is_told_without_its_password(oncekey: Oncekey, url: str) -> None:
    ran = oncekey("count", url, "redis://:hunter2@127.0.0.1/0")

    assert ran.code == 2
    assert "unrecognized arguments: redis://:***@127.0.0.1/0" in ran.err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_parse(oncekey: Oncekey, command: str) -> None:
    ran = oncekey(command, "--help")

    assert ran.code == 0
    examples = re.findall(rf"^  oncekey ({command}.*)$", ran.out, re.MULTILINE)
    assert examples
    for example in examples:
        parser().parse_args([word.strip("'") for word in re.findall(r"'[^']*'|\S+", example)])


def test_help_of_all(oncekey: Oncekey) -> None:
    ran = oncekey("--help")

    assert ran.code == 0
    assert all(re.search(rf"^    {command} ", ran.out, re.MULTILINE) for command in COMMANDS)
    assert "ONCEKEY_STORE" in ran.out


def test_every_command_is_documented_with_an_example(oncekey: Oncekey) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()

    sections = dict(re.findall(r"^## `oncekey (\w+)`$(.*?)(?=^## |\Z)", text, re.M | re.S))

    assert set(sections) == set(COMMANDS)
    for command, section in sections.items():
        assert f"$ oncekey {command}" in section
        options = set(re.findall(r"--[a-z-]+", oncekey(command, "--help").out)) - {"--help"}
        assert options <= set(re.findall(r"--[a-z-]+", text)), f"{command}: {options}"
