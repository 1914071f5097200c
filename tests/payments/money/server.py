"""The API in several worker processes, with leases short enough for a test that kills them.

python -m tests.payments.money.server '{"data": …, "port": …, "workers": …, …}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from oncekey.webhooks import LOOPBACK
from payments.server import ListenOptions, serve
from payments.settings import Settings


def main(told: str) -> int:
    said = json.loads(told)
    listening = ListenOptions(port=said.pop("port"), workers=said.pop("workers"))
    said["data"] = Path(said["data"])
    settings = Settings(local_key=True, demo=False, webhook_networks=LOOPBACK, **said)
    return serve(settings, listening, lambda: None)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
