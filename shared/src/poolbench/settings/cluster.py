"""Where a cluster is, and settings that its services share."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import NoDecode, SettingsConfigDict

from poolbench.settings.base import PREFIX, Settings, setting


def _split(paths: object) -> object:
    return [path for path in paths.split(os.pathsep) if path] if isinstance(paths, str) else paths


Gib = Annotated[float, Field(ge=0, lt=2**20, allow_inf_nan=False)]
Paths = Annotated[tuple[Path, ...], NoDecode, BeforeValidator(_split)]


class PlaceSettings(Settings):
    """Store, broker, address and token; each overrides what `cluster-up` recorded in the state folder."""

    state: Path | None = setting(None, "folder of token, store, queue, logs and `cluster.json`", unset="`.poolbench`")
    store: str = setting(
        "", "object store: folder, `file://` or `s3://bucket/prefix`", unset="`<state>/store`", repr=False
    )
    restricted_store: str = setting(
        "",
        "where artifacts of sensitive concepts lie: folder, `s3://bucket/prefix`, or `none` for no access",
        unset="`POOLBENCH_STORE`",
        repr=False,
    )
    broker: SecretStr = setting(
        SecretStr(""), "`filesystem:///absolute/folder` or `redis://[:password@]host:port/db`", unset="`<state>/queue`"
    )
    http: str = setting("", "address of the services, for clients", unset="what `cluster-up` recorded")
    http_port: int = setting(0, "port for `cluster-up` to use", unset="8000, or a free one", ge=0, lt=2**16)
    metrics_port: int = setting(
        0,
        "port of the [metrics](observability.md) of `cluster-up`, none from 10002 to 19999",
        unset="8080, or a free one",
        ge=0,
        lt=2**16,
    )
    token: SecretStr = setting(SecretStr(""), "bearer token of the services", unset="made by `cluster-up`")
    secrets: Path | None = setting(
        None,
        "folder of [files named like these variables](#secrets-as-files)",
        unset="`/run/secrets` if it exists",
    )


class HttpSettings(Settings):
    """How long a request may take."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}HTTP_")

    deadline_s: float = setting(
        1800.0, "seconds for an HTTP request; then it is answered with 504 and its work ends", gt=0, allow_inf_nan=False
    )


class LogSettings(Settings):
    """Logs of services and driver."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}LOG_")

    format: Literal["text", "json"] = setting("text", "format of [logs](observability.md#logs): `text` or `json`")


class TraceSettings(Settings):
    """Traces of services and driver."""

    traces: str | None = setting(
        None,
        "address of an OpenTelemetry collector (OTLP over HTTP), such as `http://127.0.0.1:4318`, for "
        "[traces](observability.md#traces)",
        unset="no traces",
        pattern=r"^https?://[^\s/]+(/\S*)?$",
    )


class S3Settings(Settings):
    """An S3 service and its credentials."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}S3_")

    endpoint: str = setting("", "address of the S3 service, such as `https://s3.example.org`", unset="-")
    access_key: SecretStr = setting(SecretStr(""), "credentials", unset="-")
    secret_key: SecretStr = setting(SecretStr(""), "credentials", unset="-")
    region: str = setting("us-east-1", "region")
    credentials: Literal["keys", "environment", "file", "role"] = setting(
        "keys", "[where credentials come from](#credentials-of-s3): `keys`, `environment`, `file` or `role`"
    )
    credentials_file: Path | None = setting(
        None, "for `file`: credentials in AWS's format", unset="`AWS_SHARED_CREDENTIALS_FILE`, or `~/.aws/credentials`"
    )
    profile: str = setting("", "for `file`: section of that file", unset="`AWS_PROFILE`, or `default`")
    deadline_s: float = setting(
        60.0,
        "seconds after which a failing request is not tried again",
        gt=0,
        le=600,  # a signature is valid for 15 minutes
        allow_inf_nan=False,
    )


class RestrictedS3Settings(S3Settings):
    """The credentials for artifacts of sensitive concepts; never the ordinary ones."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}RESTRICTED_S3_")

    endpoint: str = setting("", "address of their S3 service, if it is another", unset="the ordinary one")
    access_key: SecretStr = setting(SecretStr(""), "their credentials, not the ordinary ones", unset="no access")
    secret_key: SecretStr = setting(SecretStr(""), "their credentials, not the ordinary ones", unset="no access")
    region: str = setting("", "their region, if it is another", unset="the ordinary one")
    credentials: Literal["keys", "environment", "file", "role"] = setting(
        "keys", "where they come from: `keys`, `environment`, `file` or `role`, not the same as the ordinary ones"
    )
    credentials_file: Path | None = setting(None, "for `file`, as above", unset="as above")
    profile: str = setting("", "for `file`, as above", unset="as above")
    deadline_s: float = setting(
        0.0, "the same for their service, if it is another", unset="the ordinary one", ge=0, le=600, allow_inf_nan=False
    )


class FolderSettings(Settings):
    """Folders of this machine."""

    assets: Path | None = setting(None, "folder of the shipped assets", unset="`assets/` of the checkout")
    model_folders: Paths = setting(
        (), "folders below which HTTP requests may name models, with `:` between them", unset="none"
    )
    real_text: Path | None = setting(
        None,
        "folder of the real-text archives (`passages.tar.xz` and others, packed or unpacked)",
        unset="none: `--source real` needs it",
    )


_OF_ONE = "GiB of memory of one replica of this service; 0 for no limit"
_SHARE = "its share: [limits](#limits-of-cost-and-memory)"


class MemorySettings(Settings):
    """How much memory the services may use."""

    memory_gib: Gib | None = setting(
        None,
        "GiB of memory of all services of a machine together; 0 for no limit",
        unset="85 % of the machine, or all but 2 GiB",
    )
    memory_gib_extractor: Gib | None = setting(None, _OF_ONE, unset=_SHARE)
    memory_gib_pooler: Gib | None = setting(None, _OF_ONE, unset=_SHARE)
    memory_gib_prober: Gib | None = setting(None, _OF_ONE, unset=_SHARE)
    memory_gib_scorer: Gib | None = setting(None, _OF_ONE, unset=_SHARE)
    memory_gib_steerer: Gib | None = setting(None, _OF_ONE, unset=_SHARE)
    shared_machine: bool = setting(
        False, "the Ray nodes of all services run on one machine, as containers do", unset="off; on in Docker Compose"
    )


class ComposeSettings(Settings):
    """What Docker Compose alone reads."""

    redis_image: str = setting("", "image of Redis", unset="named in `deploy/docker/compose.yaml`")
    s3_image: str = setting("", "image of the S3 service", unset="named in `deploy/docker/compose.yaml`")
    runs: str = setting("", "folder that containers write runs to", unset="`runs/` of the checkout")
    monitoring: bool = setting(False, "Docker Compose starts [Prometheus and Grafana](observability.md#dashboards) too")
    prometheus_image: str = setting("", "image of Prometheus", unset="named in `deploy/docker/compose.yaml`")
    prometheus_port: int = setting(9090, "port of Prometheus on this machine", ge=1, lt=2**16)
    grafana_image: str = setting("", "image of Grafana", unset="named in `deploy/docker/compose.yaml`")
    grafana_port: int = setting(3000, "port of Grafana on this machine", ge=1, lt=2**16)


class KuberaySettings(Settings):
    """What the tests of the deployment on Kubernetes alone read."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}KUBERAY_")

    crds: Path | None = setting(
        None, "folder of KubeRay's CRDs, for tests of `deploy/kuberay/`", unset="none: those tests are skipped"
    )


class ProcessSettings(Settings):
    """What processes of one cluster set for those that they start; not for users."""

    cluster_id: str = setting("", "set by `cluster-up`: marks the processes of one cluster", unset="-")
    engine_owner: int | None = setting(None, "set by the steerer: process id of the owner of an engine", unset="-")
