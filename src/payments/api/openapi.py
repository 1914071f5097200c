"""The OpenAPI document: correct for forms and for JSON, and for every error.

Handlers parse their parameters themselves (no framework parses forms in bracket notation), so each
route declares here what it takes and returns.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from payments.api import parameters
from payments.api import schemas as response_schemas
from payments.settings import API_VERSION

_REF = "#/components/schemas/{model}"
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"

ERRORS = {
    400: "A parameter is wrong, or the state of the object does not allow it.",
    401: "No API key, or one that is not valid.",
    402: "The card was declined.",
    404: "No such object.",
    409: "A request with this key is running.",
    413: "The body is too large.",
    429: "Too many requests: nothing was done.",
    500: "An error on our side.",
    503: "Something behind the API does not answer: retry with the same key.",
}
_WRITES = (400, 401, 402, 404, 409, 413, 429, 500, 503)
_READS = (400, 401, 404, 429, 500, 503)

_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "Makes this request safe to retry: new for each operation, the same for every "
    "retry of it. A retry gets the first answer again, and nothing runs twice.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}


def documents_response(
    model: type[BaseModel],
    *,
    many: bool = False,
    writes: bool = False,
    or_deleted: bool = False,
) -> dict[str, Any]:
    """Document a route's responses, as arguments for its decorator."""
    schema = _list_of(model) if many else _ref(model)
    if or_deleted:
        schema = {"anyOf": [schema, _ref(response_schemas.Deleted)]}
    described = {"description": "Done.", "content": {_JSON: {"schema": schema}}}
    error = {"content": {_JSON: {"schema": _ref(response_schemas.Error)}}}
    statuses = _WRITES if writes else _READS
    failures = {status: {"description": ERRORS[status], **error} for status in statuses}
    return {"responses": {200: described, **failures}}


def documents_body(model: type[BaseModel]) -> dict[str, Any]:
    """Document a route's body, as arguments for its decorator."""
    schema = {"schema": _ref(model)}
    encoding = {
        name: {"style": "deepObject", "explode": True}
        for name, field in model.model_fields.items()
        if _is_nested(field.annotation)
    }
    form = schema | ({"encoding": encoding} if encoding else {})
    body = {"content": {_FORM: form, _JSON: schema}, "required": _any_required(model)}
    return {"openapi_extra": {"requestBody": body, "parameters": [_KEY]}}


def documents_query(model: type[BaseModel]) -> dict[str, Any]:
    """Document a route's query, as arguments for its decorator."""
    schema = model.model_json_schema(ref_template=_REF)
    query = [
        _parameter(name, field, name in schema.get("required", ()))
        for name, field in schema["properties"].items()
    ]
    return {"openapi_extra": {"parameters": query}}


def _parameter(name: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    parameter = {"name": name, "in": "query", "required": required, "schema": schema}
    if "$ref" in str(schema):
        parameter |= {"style": "deepObject", "explode": True}
    if "'array'" in str(schema):
        parameter["name"] = f"{name}[]"
    return parameter


def _ref(model: type[BaseModel]) -> dict[str, Any]:
    return {"$ref": _REF.format(model=model.__name__)}


def _list_of(model: type[BaseModel]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": ["object", "data", "has_more", "url"],
        "properties": {
            "object": {"const": "list"},
            "data": {"type": "array", "items": _ref(model)},
            "has_more": {"type": "boolean"},
            "url": {"type": "string"},
        },
    }


def _is_nested(annotation: Any) -> bool:
    return any(name in str(annotation) for name in ("dict[", "list[", "parameters."))


def _any_required(model: type[BaseModel]) -> bool:
    return any(field.is_required() for field in model.model_fields.values())


def document(app: FastAPI) -> dict[str, Any]:
    """Build the whole document."""
    result = get_openapi(
        title="payments",
        version=API_VERSION,
        description="A Stripe-compatible payments API that never charges twice.",
        routes=app.routes,
    )
    for path in result["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # the framework's; ours are 400
    schemas = result.setdefault("components", {}).setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas.update(_components())
    result["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    result["security"] = [{"key": []}]
    return result


def _components() -> dict[str, Any]:
    models = [*_models(parameters, "validation"), *_models(response_schemas, "serialization")]
    _, definitions = models_json_schema(models, ref_template=_REF)
    found: dict[str, Any] = definitions["$defs"]
    return found


def _models(module: Any, mode: str) -> list[Any]:
    return [
        (model, mode)
        for model in vars(module).values()
        if isinstance(model, type) and issubclass(model, BaseModel) and model is not BaseModel
        if model.__module__ == module.__name__
    ]
