"""What the scripts and the code that calls them must agree on."""

from __future__ import annotations

import re
from importlib import resources

from oncekey.stores.redis.verbs import FIELDS


def test_a_record_is_read_in_the_order_in_which_the_scripts_give_it() -> None:
    scripts = resources.files("oncekey.stores.redis")
    looked = re.search(r"'HMGET', key,(.*?)\)", scripts.joinpath("record.lua").read_text(), re.S)
    assert looked is not None
    assert tuple(re.findall(r"'(\w+)'", looked[1])) == FIELDS
