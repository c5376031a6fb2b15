"""What the processes of a cluster report about themselves."""

from typing import Literal

from pydantic_settings import SettingsConfigDict

from poolbench.settings.base import PREFIX, Settings, setting


class LogSettings(Settings):
    """Logs of services and driver."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}LOG_")

    format: Literal["text", "json"] = setting("text", "format of [logs](../observability.md#logs): `text` or `json`")


class TraceSettings(Settings):
    """Traces of services and driver."""

    traces: str | None = setting(
        None,
        "address of an OpenTelemetry collector (OTLP over HTTP), such as `http://127.0.0.1:4318`, for "
        "[traces](../observability.md#traces)",
        unset="no traces",
        pattern=r"^https?://[^\s/]+(/\S*)?$",
    )
