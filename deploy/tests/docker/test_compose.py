"""The compose file and the Dockerfile: who gets which secrets, what is writable, and how images are pinned."""

import asyncio
import json
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.docker import compose, keys, s3_setup

from poolbench.contracts.wire import SERVICES
from poolbench.http.tokens import Tokens

FILE = Path(compose.FOLDER) / "compose.yaml"
DOCKERFILE = (compose.FOLDER / "Dockerfile").read_text("utf-8")
DOCUMENT: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
CONTAINERS: dict[str, Any] = DOCUMENT["services"]
OURS = ("head", *SERVICES, "driver", "s3")
DIGEST = re.compile(r"^[a-z0-9./-]+:[A-Za-z0-9._-]+@sha256:[0-9a-f]{64}$")


def secrets_of(container: str) -> dict[str, str]:
    """Return the secrets of a container: its name in `/run/secrets`, and the file that it is."""
    listed = CONTAINERS[container].get("secrets", [])
    return {each: each for each in listed if isinstance(each, str)} | {
        each["target"]: each["source"] for each in listed if not isinstance(each, str)
    }


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("POOLBENCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("POOLBENCH_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_no_secret_is_in_an_environment_or_a_command(state: Path) -> None:
    keys.prepare()
    for name, container in CONTAINERS.items():
        for variable, value in container.get("environment", {}).items():
            secret = re.search(r"TOKEN|PASSWORD|SECRET|ACCESS_KEY|BROKER$", variable)
            assert not secret or str(value).startswith("/run/secrets/"), (name, variable)
        assert "PASSWORD" not in f"{container.get('command')} {container.get('healthcheck')}", name


def test_each_container_gets_the_secrets_that_it_needs() -> None:
    for name in SERVICES:
        assert secrets_of(name)["POOLBENCH_S3_SECRET_KEY"] == "s3_services_secret"
    assert secrets_of("driver")["POOLBENCH_S3_SECRET_KEY"] == "s3_driver_secret"
    assert "RAY_AUTH_TOKEN" not in secrets_of("driver")
    assert not [name for name in secrets_of("head") if "S3" in name]
    assert set(secrets_of("s3-setup").values()) == {"s3_root_access", "s3_root_secret"}
    holders = [name for name in CONTAINERS if "s3_root_secret" in secrets_of(name).values()]
    assert holders == ["s3-setup"]


def test_every_secret_is_a_file_that_up_writes(state: Path) -> None:
    keys.prepare()
    assert keys.folder() == state / "secrets" and keys.folder().stat().st_mode & 0o777 == 0o700
    for name, secret in DOCUMENT["secrets"].items():
        assert secret["file"].endswith(f"/{name}")
        file = keys.folder() / name
        assert file.stat().st_mode & 0o777 == 0o644, "a container's user may read it; the folder keeps others out"
    used = {source for container in CONTAINERS for source in secrets_of(container).values()}
    assert used == set(DOCUMENT["secrets"])


def test_secrets_are_made_once_and_completed(state: Path) -> None:
    keys.prepare()
    first = {file.name: file.read_text() for file in keys.folder().iterdir()}
    (keys.folder() / "GRAFANA_PASSWORD").unlink()
    keys.prepare()
    again = {file.name: file.read_text() for file in keys.folder().iterdir()}
    assert {name for name in first if first[name] != again[name]} == {"GRAFANA_PASSWORD"}
    assert keys.read("POOLBENCH_BROKER") == f"redis://:{keys.read('REDIS_PASSWORD')}@redis:6379/1"
    assert keys.read("POOLBENCH_TOKEN_NEXT") == ""
    users = json.loads(keys.read("s3.json"))["identities"]
    assert [user["name"] for user in users if user["actions"]] == ["root"]
    assert len({user["credentials"][0]["secretKey"] for user in users}) == len(users) == 3


def test_another_s3_service_gets_its_own_keys(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ENDPOINT": "https://s3.example.org", "ACCESS_KEY": "mine", "SECRET_KEY": "hidden"}.items():
        monkeypatch.setenv(f"POOLBENCH_S3_{name}", value)
    keys.prepare()
    assert keys.read("s3_services_access") == keys.read("s3_driver_access") == "mine"
    assert keys.read("s3_driver_secret") == "hidden"


def test_a_token_is_replaced_in_the_mounted_files(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/security.md says, writing into the files: a container sees those that were mounted."""
    keys.prepare()
    monkeypatch.setenv("POOLBENCH_SECRETS", str(mounted(state)))
    monkeypatch.setenv("POOLBENCH_STORE", "s3://poolbench")
    monkeypatch.setattr("poolbench.http.tokens.REREAD_S", 0.0)
    tokens, old = Tokens.of_cluster(), keys.read("POOLBENCH_TOKEN")

    def valid() -> tuple[str, ...]:
        asyncio.run(tokens.refresh())
        return tokens.valid()

    assert valid() == (old,)
    (keys.folder() / "POOLBENCH_TOKEN_NEXT").write_text("new")
    assert valid() == (old, "new")
    (keys.folder() / "POOLBENCH_TOKEN").write_text("new")
    (keys.folder() / "POOLBENCH_TOKEN_NEXT").write_text("")
    assert valid() == ("new",)
    keys.prepare()
    assert valid() == ("new",), "the next `up` keeps it"


def mounted(state: Path) -> Path:
    """Return a folder like `/run/secrets` of the head: the same files, not copies."""
    folder = state / "mounted"
    folder.mkdir()
    for target, source in secrets_of("head").items():
        os.link(keys.folder() / source, folder / target)
    return folder


@pytest.mark.parametrize("uri", ["s3://poolbench", "s3://bucket/some/prefix"])
def test_users_have_the_rights_of_their_roles(uri: str) -> None:
    place = uri.removeprefix("s3://")
    statements = json.loads(s3_setup.policy(uri))["Statement"]
    paths = {f"{place}/artifacts/a/1/table": ("driver", "services"), f"{place}/runs/a/state.json": ("driver",)}
    for path, owners in paths.items():
        for user in s3_setup.USERS:
            for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
                own = [each for each in statements if each["Principal"]["AWS"][0].endswith(f":user/{user}")]
                assert _allows(own, action, path) == (user in owners), (user, action, path)


def _allows(statements: list[dict[str, Any]], action: str, path: str) -> bool:
    """What S3 makes of a policy: allowed by a statement and denied by none."""
    matching = [
        statement["Effect"]
        for statement in statements
        if action in statement["Action"]
        and any(fnmatchcase(f"arn:aws:s3:::{path}", resource) for resource in statement["Resource"])
    ]
    return "Allow" in matching and "Deny" not in matching


def test_nothing_is_writable_but_named_volumes() -> None:
    for name, container in CONTAINERS.items():
        assert container["read_only"] is True and container["cap_drop"] == ["ALL"], name
        assert container["security_opt"] == ["no-new-privileges:true"], name
        for volume in container.get("volumes", []):
            source, rest = re.sub(r"\$\{[^}]*\}", "runs", volume).split(":", 1)
            assert source in DOCUMENT["volumes"] or rest.endswith(":ro") or name == "driver", (name, volume)
    for name in ("head", *SERVICES):
        assert f"{name}-tmp:/tmp" in CONTAINERS[name]["volumes"]
        assert DOCUMENT["volumes"][f"{name}-tmp"]["labels"] == dict([compose.SCRATCH.split("=")])


def test_images_of_others_are_pinned_by_digest() -> None:
    for name, container in CONTAINERS.items():
        image = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", container["image"])
        assert image.startswith("poolbench/") or DIGEST.match(image), name
    for image in re.findall(r"^ARG \w+_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE):
        assert DIGEST.match(image), image


def test_every_image_has_a_target_that_is_not_root_and_says_how_it_is() -> None:
    stages = dict(re.findall(r"^FROM \S+ AS (\S+)\n((?:(?!^FROM ).*\n?)*)", DOCKERFILE, re.MULTILINE))
    for name in (*OURS, "gpu"):
        assert re.search(r"^USER 10001$", stages[name], re.MULTILINE), name
        assert "HEALTHCHECK" in stages[name], name
    assert {CONTAINERS[name]["build"]["target"] for name in OURS} == set(OURS)
    compilers = [name for name, text in stages.items() if "g++" in text]
    assert compilers == ["steerer-pins"]
    assert stages["steerer-pins"].index("Python.h") < stages["steerer-pins"].index("apt-get install"), "checked first"


def test_the_state_of_the_head_is_apart_from_the_queue(state: Path) -> None:
    keys.prepare()
    environment = CONTAINERS["head"]["environment"]
    assert environment["RAY_REDIS_ADDRESS"] == "redis:6379"
    assert environment["RAY_REDIS_PASSWORD_PATH"] == "/run/secrets/REDIS_PASSWORD"
    assert keys.read("POOLBENCH_BROKER").endswith("/1"), "Ray uses database 0 and knows no other"
