"""An example application in a process of its own, which can be killed at a probe.

python -m tests.acceptance.example_child NAME PORT DATA
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import uvicorn
from werkzeug.serving import make_server

from oncekey.testing.crash import arm_from_environment


def serve_wsgi(app: Any, port: int) -> None:
    make_server("127.0.0.1", port, app, threaded=True).serve_forever()


def main(name: str, port: int, data: Path) -> None:
    arm_from_environment()
    if name == "fastapi":
        from examples import fastapi_orders

        uvicorn.run(fastapi_orders.build(data), port=port, log_config=None)
    elif name == "flask":
        from examples import flask_orders

        serve_wsgi(flask_orders.build(data), port)
    else:
        os.environ["ORDERS_DATA"] = str(data)
        os.environ["DJANGO_SETTINGS_MODULE"] = "examples.django_orders.settings"
        from django.core.management import call_command

        from examples.django_orders.wsgi import application

        call_command("migrate", run_syncdb=True, verbosity=0)
        call_command("oncekey_migrate")
        serve_wsgi(application, port)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
