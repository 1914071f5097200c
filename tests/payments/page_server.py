"""The pages on a real server, for a browser, without a card network behind them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Self

import uvicorn

from payments.app import create_app
from payments.settings import Settings
from payments.storage.database import Database
from tests.servers.process import free_port

WAIT_S_MAX = 30.0


class PageServer:
    """The application in a thread of this process, at `url`."""

    def __init__(self, data: Path) -> None:
        port = free_port()
        settings = Settings(data=data, recover=False)
        database = Database(settings)
        database.create_tables()
        database.close()
        self.url = f"http://127.0.0.1:{port}"
        config = uvicorn.Config(create_app(settings), port=port, log_level="error")
        self._server = uvicorn.Server(config)
        self._serving = threading.Thread(target=self._server.run)

    def __enter__(self) -> Self:
        self._serving.start()
        while not self._server.started:
            self._serving.join(0.01)
            assert self._serving.is_alive()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._serving.join(WAIT_S_MAX)
