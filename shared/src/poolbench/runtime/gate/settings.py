"""Limits of the gate; facts of a deployment, never of science."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from poolbench.errors import ConfigError

PREFIX = "POOLBENCH_GATE_"


class GateSettings(BaseModel):
    """Each field is the environment variable POOLBENCH_GATE_<FIELD>."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_url_kib: int = Field(8, ge=1, le=1024, description="path and query; more is 414")
    max_header_kib: int = Field(32, ge=1, le=1024, description="headers and trailers of a request; more is 431")
    max_headers: int = Field(100, ge=8, le=10_000, description="headers and trailers of a request; more is 431")
    header_timeout_s: float = Field(10, gt=0, le=3600, description="time to send the headers; longer is 408")
    max_body_mib: float = Field(256, gt=0, le=4096, description="a body that is not JSON; more is 413")
    max_json_mib: float = Field(64, gt=0, le=4096, description="a JSON body; more is 413")
    max_bodies_mib: float = Field(512, gt=0, le=1 << 20, description="all bodies under way together; more is 429")
    body_grace_s: float = Field(10, gt=0, le=3600, description="time to send a body at any rate")
    body_min_kib_per_s: float = Field(16, gt=0, description="least rate of a body after that; slower is 408")
    body_timeout_s: float = Field(300, gt=0, le=86_400, description="time to send a whole body; longer is 408")
    answer_timeout_s: float = Field(30, gt=0, le=3600, description="time without reading; the connection is dropped")
    max_connections: int = Field(4096, ge=1, le=1 << 20, description="open connections")
    connections_per_client: int = Field(1024, ge=1, le=1 << 20, description="open connections of one address; 429")
    requests_per_client: int = Field(1024, ge=1, le=1 << 20, description="requests of one address at once; 429")
    open_requests: int = Field(16, ge=1, le=1 << 20, description="requests without a token at once; 429")
    health_wait_s: float = Field(0.3, gt=0, le=60, description="how long `/health` waits for the service")
    health_silence_s: float = Field(30, gt=0, le=3600, description="silence after which a service counts as down")

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ) -> GateSettings:
        """The settings that the environment names, and defaults.

        Raises:
            ConfigError: a name is unknown, or a value is outside its bounds.
        """
        named = {name: value for name, value in environment.items() if name.startswith(PREFIX) and value}
        try:
            return cls.model_validate({name.removeprefix(PREFIX).lower(): value for name, value in named.items()})
        except ValidationError as error:
            issues = (f"{PREFIX}{str(issue['loc'][0]).upper()}: {issue['msg']}" for issue in error.errors())
            raise ConfigError(f"{'; '.join(issues)}; docs/operations.md lists the settings of the gate") from None
