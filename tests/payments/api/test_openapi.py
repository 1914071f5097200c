"""The document is true: requests made from it are answered as it says, and never by a failure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from payments.access.accounts import LOCAL_KEY
from tests.payments.api_client import Api
from tests.payments.api_process import ApiProcess

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
)


def document_of(api: Api) -> dict[str, Any]:
    document: dict[str, Any] = api.client.get("/openapi.json").json()
    return document


def test_every_route_says_what_it_takes_and_answers(api: Api) -> None:
    document = document_of(api)
    assert len(document["paths"]) > 20
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert "200" in operation["responses"], path
            assert "422" not in operation["responses"], path
            if method == "post":
                content = operation["requestBody"]["content"]
                assert set(content) == {"application/json", "application/x-www-form-urlencoded"}
                names = [each["name"] for each in operation["parameters"]]
                assert "Idempotency-Key" in names


def test_every_reference_leads_somewhere(api: Api) -> None:
    document = document_of(api)

    def look(value: Any) -> None:
        if isinstance(value, dict):
            if "$ref" in value:
                name = value["$ref"].removeprefix("#/components/schemas/")
                assert name in document["components"]["schemas"], name
            for inner in value.values():
                look(inner)
        elif isinstance(value, list):
            for inner in value:
                look(inner)

    look(document)


def run_schemathesis(server: ApiProcess, folder: Path, *options: str) -> str:
    """What schemathesis says; it fails where an answer is a failure, or outside the document."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {LOCAL_KEY}", "--checks", ",".join(CHECKS)]
    command += ["--generation-deterministic", "--no-color", *options]
    done = subprocess.run(
        command,
        cwd=folder,
        env=dict(os.environ, NO_PROXY="*", PYTHONWARNINGS=""),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_requests_made_from_the_document_are_answered_as_it_says(tmp_path: Path) -> None:
    with ApiProcess(tmp_path) as server:
        said = run_schemathesis(server, tmp_path, "--phases", "fuzzing", "--max-examples", "2")
    assert "passed" in said


@pytest.mark.long
@pytest.mark.timeout(900)
def test_many_requests_made_from_the_document(database_url: str, tmp_path: Path) -> None:
    with ApiProcess(tmp_path, database_url=database_url) as server:
        phases = "examples,coverage,fuzzing,stateful"
        said = run_schemathesis(server, tmp_path, "--phases", phases, "--max-examples", "30")
    assert "passed" in said
