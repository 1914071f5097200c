"""Spelling: how routers may read a path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncekey.web._routes import is_normal, normal, readings

PATHS = st.text(st.sampled_from("/.a\nhtp:"), max_size=12)


@pytest.mark.parametrize("path", ["/", "/charges", "/charges/", "/a/b.c/..d/.e", "/charges\n\n"])
def test_an_ordinary_path_is_its_own_normal_form(path: str) -> None:
    assert normal(path) == path
    assert readings(path) == (path,)


@pytest.mark.parametrize(
    "path",
    [
        *("//charges", "///charges", "charges", "/./charges", "/x/../charges", "/../charges"),
        *("http://host/charges", "HTTPS://host:1//charges", "/charges\n", "//./charges"),
    ],
)
def test_other_spellings_have_one_normal_form(path: str) -> None:
    assert normal(path) == "/charges"
    assert "/charges" in readings(path)


@pytest.mark.parametrize("path", ["/charges//", "//charges/", "/charges/.", "/charges/x/.."])
def test_a_slash_at_the_end_stays(path: str) -> None:
    assert normal(path) == "/charges/"


@pytest.mark.parametrize("path", ["", "//", "/.", "/..", "http://host", "/a/.."])
def test_what_names_nothing_is_the_root(path: str) -> None:
    assert normal(path) == "/"


@given(PATHS)
def test_a_normal_form_is_reached_at_once(path: str) -> None:
    once = normal(path)
    assert once.startswith("/")
    assert "//" not in once
    if "\n" not in path:
        assert is_normal(once)
        assert normal(once) == once
