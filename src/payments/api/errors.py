"""Errors, in Stripe's format.

An error found before anything was done leaves the request's key unused, so that the client can fix
the request and retry with the same key. Business results (a declined card, a charge that is already
refunded) are stored and replayed like any other response.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy.exc
from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

import oncekey
from payments.api.responses import respond
from payments.network import NetworkDown

log = logging.getLogger("payments")


class StripeError(Exception):
    """An error response.

    `no_effect`: nothing was done, so the key is not spent. `should_retry`: clients should send the
    same request again.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        no_effect: bool = False,
        should_retry: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.no_effect = no_effect
        self.should_retry = should_retry
        fields = {"type": kind, "code": code, "message": message, "param": param, **more}
        self.body = {"error": {name: value for name, value in fields.items() if value is not None}}


def invalid(message: str, param: str | None, code: str | None = None) -> StripeError:
    """Return the error for an invalid request: nothing was done."""
    return StripeError(
        400, "invalid_request_error", message, code=code, param=param, no_effect=True
    )


def not_allowed(message: str, code: str | None = None, param: str | None = None) -> StripeError:
    """Return the error for a valid request that the object's state does not allow."""
    return StripeError(400, "invalid_request_error", message, code=code, param=param)


def busy(what: str) -> StripeError:
    """Return the error for an object that another request is working on.

    How that ends is unknown, so nothing is stored under this request's key.
    """
    return StripeError(
        429,
        "invalid_request_error",
        f"Another request is at work on this {what}. Try again in a moment.",
        code="lock_timeout",
        no_effect=True,
        should_retry=True,
    )


def not_found(kind: str, id_: str, param: str = "id") -> StripeError:
    """Return the error for an object that does not exist or belongs to another account."""
    return StripeError(
        404 if param == "id" else 400,
        "invalid_request_error",
        f"No such {kind}: '{id_[:100]}'",
        code="resource_missing",
        param=param,
        no_effect=True,
    )


def add_handlers(app: FastAPI) -> None:
    """Render every error of the application in Stripe's format."""
    app.add_exception_handler(StripeError, _render_error)
    app.add_exception_handler(HTTPException, _render_http_error)
    app.add_exception_handler(NetworkDown, _network_down)
    app.add_exception_handler(sqlalchemy.exc.OperationalError, _database_down)
    app.add_exception_handler(sqlalchemy.exc.TimeoutError, _database_down)
    app.add_exception_handler(oncekey.StoreUnavailable, _database_down)
    app.add_exception_handler(oncekey.LeaseLost, _taken_over)
    app.add_exception_handler(Exception, _render_unexpected)


def _render_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StripeError)  # noqa: S101  (it is registered for these)
    attempt = oncekey.current_or_none()
    # A recovered request has no client that could fix it: this is its result.
    if error.no_effect and attempt is not None and not attempt.recovering:
        attempt.no_effect()
    advice = [(b"stripe-should-retry", b"true")] if error.should_retry else []
    return respond(request, error.body, error.status, advice)


def _render_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    message = str(error.detail)
    if error.status_code in (404, 405):
        path = request.url.path[:200]
        message = (
            f"Unrecognized request URL ({request.method}: {path}). See /docs for what is here."
        )
    rendered = StripeError(error.status_code, "invalid_request_error", message, no_effect=True)
    return _render_error(request, rendered)


def _network_down(request: Request, error: Exception) -> Response:
    log.warning("the card network does not answer: %s", error)
    return _unavailable(request, "The card network does not answer.")


def _database_down(request: Request, error: Exception) -> Response:
    log.error("the database does not answer", exc_info=error)
    return _unavailable(request, "The database does not answer.")


def _taken_over(request: Request, error: Exception) -> Response:
    log.warning("%s", error)
    return _unavailable(request, "Another attempt at this request goes on.")


def _unavailable(request: Request, what: str) -> Response:
    message = (
        f"{what} Retry with the same Idempotency-Key: what was begun is continued, not repeated."
    )
    error = StripeError(503, "api_error", message)
    return respond(request, error.body, error.status)


def _render_unexpected(request: Request, error: Exception) -> Response:
    message = (
        "An error occurred on our side. Retry with the same Idempotency-Key: what was begun is "
        "continued, not repeated."
    )
    return respond(request, StripeError(500, "api_error", message).body, 500)
