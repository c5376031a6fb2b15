"""Settings that one service reads. Nothing here changes a result, only speed, memory and trust."""

from typing import Literal

from poolbench.settings.base import PREFIX, Settings, SettingsConfigDict, setting


class ExtractorSettings(Settings):
    """Settings of the extractor."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}EXTRACTOR_")

    device: str | None = setting(
        None,
        "`cpu`, `cuda`, one of several as in `cuda:1`, or `auto` (one model over all GPUs)",
        unset="a GPU if there is one",
        pattern=r"^(cpu|cuda(:\d+)?|auto)$",
    )
    trust_remote_code: bool = setting(
        False, "the extractor may run code of a model repository", validation_alias=f"{PREFIX}TRUST_REMOTE_CODE"
    )


class PoolerSettings(Settings):
    """Settings of one replica of the pooler."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}POOLER_")

    processes: int = setting(1, "processes that parse the texts of a task, with one core each", ge=1, le=64)


class ScorerSettings(Settings):
    """Settings of the scorer."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}SCORER_")

    trust_pickle: bool = setting(
        False, "the scorer may read published scorers from `pytorch_model.bin`", unset="off: safetensors only"
    )


class SteererSettings(Settings):
    """Settings of one replica of the steerer."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}STEERER_")

    device: Literal["auto", "cpu", "cuda"] = setting("auto", "`auto` takes a GPU where vLLM sees one")
    eager_start: bool = setting(
        False, "load the model when the service starts, which is up only then, instead of at the first request"
    )
    model: str = setting("demo", "model of requests that name none")
    enforce_eager: bool | None = setting(None, "no compilation and no CUDA graphs", unset="on CPUs only")
    max_model_len: int | None = setting(None, "window in tokens", unset="the model's", gt=1)
    max_num_seqs: int = setting(256, "texts that the engine computes at once", gt=0)
    max_num_batched_tokens: int = setting(2048, "tokens of one forward pass", gt=0)
    block_size: int | None = setting(32, "tokens of one block of the KV cache; CPUs only", gt=0)
    kv_cache_gib: float | None = setting(
        None, "GiB of the KV cache", unset="1 on CPUs; on GPUs what the memory share leaves", gt=0
    )
    gpu_memory_share: float = setting(0.85, "share of the device's memory that the engine may use", gt=0, le=1)
    tensor_parallel: int = setting(1, "GPUs over which the model is split", gt=0)
    prefix_caching: bool = setting(True, "reuse the states of equal beginnings")
    bank_slots: int = setting(4096, "vectors that the device bank holds", ge=2)
    max_edits_per_layer: int = setting(4, "edits that one request may make at one layer", gt=0, le=16)
    max_steered_requests: int = setting(
        1024, "requests for texts, steered or not, inside the engine at once; more wait outside of it", gt=0
    )
    max_pending_texts: int = setting(4096, "texts that HTTP requests may wait for at once; more are 429", gt=0)
    max_upload_mib: float = setting(256, "largest body with vectors", gt=0)
    num_threads: int | None = setting(None, "OpenMP threads of the engine on a CPU", unset="`OMP_NUM_THREADS`", gt=0)
    tool_parser: str | None = setting(
        None,
        "vLLM's parser for the model's calls of tools, such as `hermes`",
        unset="no tools",
    )
    max_restarts: int = setting(2, "restarts of a dead engine for one call", ge=0)
    trust_remote_code: bool = setting(False, "the engine may run code of a model repository")


class GateSettings(Settings):
    """Limits of HTTP requests."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}GATE_")

    max_body_mib: float = setting(256, "a body that is not JSON (safetensors); more is 413", gt=0, le=4096)
    max_json_mib: float = setting(64, "a JSON body; more is 413", gt=0, le=4096)
    max_bodies_mib: float = setting(
        512, "all bodies under way together, an eighth of it without a token; more is 429", gt=0, le=1 << 20
    )
    max_connections: int = setting(4096, "open connections; more get 503", ge=1, le=1 << 20)
    open_documentation: bool = setting(False, "`/docs` and `/openapi.json` need no token; on in a local cluster")
    health_wait_s: float = setting(
        0.3, "how long `/health` waits for its service; then it gives the last known state", gt=0, le=60
    )
    health_silence_s: float = setting(
        30, "silence after which a service counts as down, and `/health` is 503", gt=0, le=3600
    )


class ConsoleSettings(Settings):
    """The console."""

    model_config = SettingsConfigDict(env_prefix=f"{PREFIX}CONSOLE_")

    hosts: str = setting(
        "",
        "names under which browsers may ask for [the console](../console.md), with `,` between them, beside "
        "`localhost` and addresses in numbers",
        unset="none",
    )

    @property
    def names(self) -> list[str]:
        """Return the host names as a list."""
        return [host.strip() for host in self.hosts.split(",") if host.strip()]


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
