"""Limits of the gate in front of the services."""

from pydantic_settings import SettingsConfigDict

from poolbench.settings.base import PREFIX, Settings, setting


class GateSettings(Settings):
    """Limits of HTTP requests."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}GATE_")

    max_url_kib: int = setting(8, "path and query; more is 414", ge=1, le=1024)
    max_header_kib: int = setting(32, "headers and trailers of a request; more is 431", ge=1, le=1024)
    max_headers: int = setting(100, "number of headers and trailers of a request; more is 431", ge=8, le=10_000)
    header_timeout_s: float = setting(10, "time to send the headers; longer is 408", gt=0, le=3600)
    max_body_mib: float = setting(256, "a body that is not JSON (safetensors); more is 413", gt=0, le=4096)
    max_json_mib: float = setting(64, "a JSON body; more is 413", gt=0, le=4096)
    max_bodies_mib: float = setting(512, "all bodies under way together; more is 429", gt=0, le=1 << 20)
    body_grace_s: float = setting(10, "time to send a body at any rate", gt=0, le=3600)
    body_min_kib_per_s: float = setting(16, "least rate of a body after that; slower is 408", gt=0)
    body_timeout_s: float = setting(300, "time to send a whole body; longer is 408", gt=0, le=86_400)
    answer_timeout_s: float = setting(
        30, "time without reading any of an answer; then the connection is dropped", gt=0, le=3600
    )
    max_connections: int = setting(4096, "open connections; more is 429", ge=1, le=1 << 20)
    connections_per_client: int = setting(1024, "open connections of one address; more is 429", ge=1, le=1 << 20)
    requests_per_client: int = setting(1024, "requests of one address at once; more is 429", ge=1, le=1 << 20)
    open_requests: int = setting(16, "requests without a token at once (documentation); more is 429", ge=1, le=1 << 20)
    health_wait_s: float = setting(
        0.3, "how long `/health` waits for its service; then it gives the last known state", gt=0, le=60
    )
    health_silence_s: float = setting(
        30, "silence after which a service counts as down, and `/health` is 503", gt=0, le=3600
    )
