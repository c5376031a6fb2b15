"""Whether a running service does what its OpenAPI document says, as schemathesis sees it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.schemas import BaseSchema
from tests.servers import media_types
from tests.servers.services import TOKEN

CONFIGURATION = Path(__file__).parents[1] / "schemathesis.toml"
AUTHORIZATION = {"Authorization": f"Bearer {TOKEN}"}
DEADLINE_S = 1200  # a guard against hanging; a service takes about 10 s


def violations(address: str, service: str) -> str:
    """Run all checks of schemathesis on all verbs of a service.

    Returns:
        The report of what is wrong, empty if nothing is.
    """
    command = [Path(sys.executable).with_name("st"), "--config-file", CONFIGURATION, "--no-color", "run"]
    header = [part for name, value in AUTHORIZATION.items() for part in ("--header", f"{name}: {value}")]
    ended = subprocess.run(
        [*command, *header, "--checks", "all", f"{address}/{service}/openapi.json"],
        env={**os.environ, "SCHEMATHESIS_HOOKS": str(media_types.__file__)},
        check=False, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def document(address: str, service: str) -> BaseSchema:
    """The OpenAPI document of a service, to make single requests with."""
    configuration = schemathesis.Config.from_path(CONFIGURATION)
    return schemathesis.openapi.from_url(f"{address}/{service}/openapi.json", config=configuration)


def examples(schema: BaseSchema) -> list[tuple[str, Any]]:
    """Path and body of every example in the document."""
    found = []
    for path, operations in schema.raw_schema["paths"].items():
        for operation in operations.values():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            found += [(path, example["value"]) for example in body.get("examples", {}).values()]
    return found


def answer(schema: BaseSchema, path: str, body: Any, *, media_type: str = "application/json", **headers: str) -> Any:
    """Send one request with the token, and apply every check to the answer.

    Raises:
        FailureGroup: The answer is not as documented.
    """
    case = schema[path]["POST"].Case(body=body, media_type=media_type, headers=headers)
    return case.call_and_validate(headers=AUTHORIZATION)
