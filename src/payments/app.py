"""The application: what stands in front, oncekey in the middle, the routes inside."""

from __future__ import annotations

from fastapi import FastAPI

from payments.database import Database
from payments.settings import API_VERSION, Settings


def create_app(settings: Settings) -> FastAPI:
    """The payments API as an ASGI application."""
    app = FastAPI(title="payments", version=API_VERSION, openapi_url=None)
    app.state.settings = settings
    app.state.database = Database(settings)
    return app
