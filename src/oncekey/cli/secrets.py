"""`secrets`: show which secrets open a sealed store, and revoke one."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from oncekey._core.op import run
from oncekey.cli.output import print_json, table
from oncekey.cli.store_options import SECRETS
from oncekey.errors import Misuse


def secrets(store: Any, args: argparse.Namespace) -> int:
    if not hasattr(store, "secret_ids"):
        raise Misuse(f"set {SECRETS} to the secrets of the sealed store")
    with closing(store.connect()) as connection:
        run(store.prepare(), connection.ask)
        if args.forget:
            run(store.forget_secret(_id(args.forget)), connection.ask)
        held = run(store.secret_ids(), connection.ask)
    given = [secret.id for secret in store.secrets]
    rows = [(each.hex(), _role(each, given)) for each in (*given, *sorted(held - {*given}))]
    if args.json:
        print_json({"secrets": [{"id": name, "role": role} for name, role in rows]})
    else:
        print(table(("SECRET", "HERE"), rows))
    return 0


def _role(secret_id: bytes, given: list[bytes]) -> str:
    if secret_id not in given:
        return "opens it, not given here"
    return "seals" if secret_id == given[0] else "opens"


def _id(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Misuse("--forget takes the id of a secret, as `oncekey secrets` shows it") from None
