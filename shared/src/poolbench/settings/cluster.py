"""Settings that the services of a cluster share."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr

from poolbench.errors import ConfigError
from poolbench.settings.base import PREFIX, Settings, SettingsConfigDict, setting


def _split(paths: object) -> object:
    return [path for path in paths.split(os.pathsep) if path] if isinstance(paths, str) else paths


Gib = Annotated[float, Field(ge=0, lt=2**20, allow_inf_nan=False)]
Paths = Annotated[tuple[Path, ...], BeforeValidator(_split)]


class BrokerSettings(Settings):
    """How a `rediss://` broker is reached."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}BROKER_")

    ca_file: Path | None = setting(
        None, "certificates of the authorities that a `rediss://` server may have", unset="those of the system"
    )


class HttpSettings(Settings):
    """How long a request may take, and TLS."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}HTTP_")

    deadline_s: float = setting(
        1800.0, "seconds for an HTTP request; then it is answered with 504 and its work ends", gt=0, allow_inf_nan=False
    )
    tls_cert: Path | None = setting(
        None, "certificate chain of the HTTP proxy, which then [answers HTTPS](../security.md#tls)", unset="plain HTTP"
    )
    tls_key: Path | None = setting(None, "its private key", unset="none")
    ca_file: Path | None = setting(
        None, "for clients: certificates of the authorities of `https://` services", unset="the well-known ones"
    )


class S3Settings(Settings):
    """An S3 service and its credentials."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}S3_")

    endpoint: str = setting("", "address of the S3 service, such as `https://s3.example.org`", unset="-")
    access_key: SecretStr = setting(SecretStr(""), "credentials", unset="-")
    secret_key: SecretStr = setting(SecretStr(""), "credentials", unset="-")
    region: str = setting("us-east-1", "region")
    credentials: Literal["keys", "environment", "file", "role"] = setting(
        "keys", "[where credentials come from](stores.md#credentials-of-s3): `keys`, `environment`, `file` or `role`"
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


class FolderSettings(Settings):
    """Folders of this machine."""

    assets: Path | None = setting(None, "folder of the shipped assets", unset="`assets/` of the checkout")
    model_folders: Paths = setting(
        (), "folders below which HTTP requests may name models, with `:` between them", unset="none"
    )
    real_text: Path | None = setting(
        None,
        "folder of the real-text archives, packed or unpacked; only recipes read it",
        unset="none",
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
    shared_gpu: bool = setting(
        False,
        "this replica shares its GPU with other services ([phases](cluster.md#one-gpu))",
        unset="as Serve's options say",
    )


_NUMBER_OF = "replicas of this service: a number, or `1-4` for as many as its work needs"
_OR_NONE = f"{_NUMBER_OF}; `0-1` ends the last one too"
_ONE = "1"
_REPLICAS = r"^\d{1,4}(-\d{1,4})?$"


class ScalingSettings(Settings):
    """How many replicas of each service `cluster-up` deploys, on this machine and with Docker Compose."""

    replicas_extractor: str | None = setting(None, _OR_NONE, unset=_ONE, pattern=_REPLICAS)
    replicas_pooler: str | None = setting(None, _OR_NONE, unset=_ONE, pattern=_REPLICAS)
    replicas_prober: str | None = setting(None, _OR_NONE, unset=_ONE, pattern=_REPLICAS)
    replicas_scorer: str | None = setting(None, _OR_NONE, unset=_ONE, pattern=_REPLICAS)
    replicas_steerer: str | None = setting(
        None, _NUMBER_OF, unset="1; with more than three GPUs [more](cluster.md#gpus)", pattern=_REPLICAS
    )
    replica_idle_s: float = setting(
        300.0, "seconds without work before a replica above the smallest number is ended", gt=0, allow_inf_nan=False
    )

    def range_of(self, service: str) -> tuple[int, int] | None:
        """Return the smallest and the largest number of replicas of a service, or None if the number is not set.

        Raises:
            ConfigError: The largest number is 0 or below the smallest, or the steerer's smallest number is 0.
        """
        field = f"replicas_{service}"
        if (value := getattr(self, field)) is None:
            return None
        least, _, most = value.partition("-")
        bounds = int(least), int(most or least)
        if bounds[1] < max(1, bounds[0]) or (service == "steerer" and bounds[0] < 1):
            raise ConfigError(
                f"{self.variable(field)} is {value!r}: use a number from 1 or a range such as 1-4; a range may start "
                "at 0, but not for the steerer, whose replicas hold the vectors that clients registered"
            )
        return bounds


class ComposeSettings(Settings):
    """What Docker Compose alone reads."""

    redis_image: str = setting("", "image of Redis", unset="named in `deploy/docker/compose.yaml`")
    s3_image: str = setting("", "image of the S3 service", unset="named in `deploy/docker/compose.yaml`")
    runs: str = setting("", "folder that containers write runs to", unset="`runs/` of the checkout")
    monitoring: bool = setting(
        False, "Docker Compose starts [Prometheus and Grafana](../observability.md#dashboards) too"
    )
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
