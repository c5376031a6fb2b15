"""The compose files: who gets which credentials, and what these may do."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.docker import compose
from deploy.docker.s3_users import policies

from poolbench.contracts.wire import SERVICES

FILE = Path(compose.FOLDER) / "compose.yaml"
RESTRICTED = ("POOLBENCH_RESTRICTED_S3_ACCESS_KEY", "POOLBENCH_RESTRICTED_S3_SECRET_KEY")


@pytest.fixture(scope="module")
def containers() -> dict[str, Any]:
    return dict(yaml.safe_load(FILE.read_text())["services"])


def test_workers_and_driver_alone_get_the_restricted_credentials(containers: dict[str, Any]) -> None:
    for name in (*SERVICES, "driver"):
        environment = containers[name]["environment"]
        assert all(environment[variable] == f"${{{variable}:-}}" for variable in RESTRICTED), name
        assert environment["POOLBENCH_S3_ACCESS_KEY"] != environment[RESTRICTED[0]]
        assert "MINIO_ROOT_PASSWORD" not in environment
    for name in ("head", "redis", "s3"):
        assert not set(RESTRICTED) & set(containers[name].get("environment", {})), name
    assert containers["driver"]["environment"]["POOLBENCH_HTTP"] == "http://head:8000"


def test_the_users_are_there_before_the_head(containers: dict[str, Any]) -> None:
    users = containers["s3-users"]
    assert {"MINIO_ROOT_USER", "MINIO_ROOT_PASSWORD", "POOLBENCH_STORE", *RESTRICTED} <= set(users["environment"])
    assert containers["head"]["depends_on"]["s3-users"] == {"condition": "service_healthy", "required": False}


@pytest.mark.parametrize("uri", ["s3://poolbench", "s3://bucket/some/prefix"])
def test_each_user_has_its_side_of_restricted(uri: str) -> None:
    place = uri.removeprefix("s3://")
    paths = {f"{place}/artifacts/a/manifest.json": "ordinary", f"{place}/restricted/restricted.a/x": "restricted"}
    for path, side in paths.items():
        for name, policy in policies(uri).items():
            for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
                assert _allows(policy, action, path) == name.endswith(side), (name, action, path)


def test_passwords_are_made_once_and_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path))
    (tmp_path / "compose.env").write_text("POOLBENCH_TOKEN=kept\n")  # as an earlier version wrote it
    first = compose._secrets_file().read_text()
    assert compose._secrets_file().read_text() == first
    values = dict(line.split("=", 1) for line in first.splitlines())
    assert values["POOLBENCH_TOKEN"] == "kept" and set(RESTRICTED) <= set(values)
    assert values[RESTRICTED[1]] != values["POOLBENCH_S3_SECRET_KEY"]
    assert (tmp_path / "compose.env").stat().st_mode & 0o777 == 0o600


def _allows(policy: dict[str, Any], action: str, path: str) -> bool:
    """What S3 makes of a policy: allowed by a statement and denied by none."""
    matching = [
        statement["Effect"]
        for statement in policy["Statement"]
        if action in statement["Action"]
        and any(fnmatchcase(f"arn:aws:s3:::{path}", resource) for resource in statement["Resource"])
    ]
    return "Allow" in matching and "Deny" not in matching
