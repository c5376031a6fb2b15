"""The option `--steering` of `vllm serve`, and what it sets. vLLM loads `register` as a general plug-in."""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

OPTION = "--steering"
_MIDDLEWARE = "poolbench_steerer.server.middleware.SteeringMiddleware"
_HELP = (
    "Steer texts by request (poolbench-steerer). Values are folders with safetensors files, such files, or NAME=FILE; "
    "requests name their vectors. Without a value, requests bring vectors or register them."
)


def register() -> None:
    """Add the option. vLLM calls this in all its processes, but only a process that reads arguments needs it."""
    if "vllm.engine.arg_utils" not in sys.modules:
        return
    from vllm.engine.arg_utils import EngineArgs

    if hasattr(EngineArgs, "poolbench_steering"):
        return
    arguments: Any = EngineArgs
    arguments.poolbench_steering = True
    arguments.add_cli_args = staticmethod(_with_option(EngineArgs.add_cli_args))
    arguments.from_cli_args = classmethod(_with_steering(arguments.from_cli_args.__func__))


def _with_option(add_cli_args: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def add(parser: Any) -> Any:
        parser = add_cli_args(parser)
        group = parser.add_argument_group("Steering", description="Steering of texts, by poolbench-steerer.")
        group.add_argument(OPTION, nargs="*", default=None, metavar="VECTORS", help=_HELP)
        return parser

    return add


def _with_steering(from_cli_args: Callable[..., Any]) -> Callable[..., Any]:
    def from_arguments(cls: type, args: Namespace) -> Any:
        if getattr(args, "steering", None) is None:
            return from_cli_args(cls, args)
        with usage_errors():
            vectors = _prepare(args)
        arguments = from_cli_args(cls, args)
        create = arguments.create_engine_config

        def create_and_check(*positional: Any, **named: Any) -> Any:
            config = create(*positional, **named)
            with usage_errors():
                _check(config, vectors)
            return config

        arguments.create_engine_config = create_and_check
        return arguments

    return from_arguments


@contextmanager
def usage_errors() -> Iterator[None]:
    """For an error that the user can fix, end the process with one line and no traceback."""
    from poolbench.errors import PoolbenchError

    try:
        yield
    except (PoolbenchError, RuntimeError) as error:
        raise SystemExit(f"vllm serve: error: {OPTION}: {error}") from None


def _prepare(args: Namespace) -> list[Any]:
    """Set the arguments of the engine and the middleware; return the named vectors.

    Raises:
        ConfigError, RuntimeError: This vLLM, or another of its options, does not go with steering.
        InputError, VectorError: Vectors cannot be read.
    """
    import vllm

    from poolbench.settings import SteererSettings
    from poolbench_steerer.engine.launch import device, require_hooked_runner, steering_arguments
    from poolbench_steerer.plugin.internals import check_internals, check_vllm_version
    from poolbench_steerer.server.files import read_vectors

    check_vllm_version(vllm.__version__)
    check_internals()
    _refuse_others(args)
    vectors = read_vectors(args.steering)
    config = SteererSettings.load()
    device_type = device(config)
    require_hooked_runner(device_type)
    arguments = steering_arguments(config, device_type)
    arguments["additional_config"] = {**(args.additional_config or {}), **arguments["additional_config"]}
    vars(args).update(arguments)
    if _MIDDLEWARE not in args.middleware:  # arguments may be read more than once
        args.middleware = [*args.middleware, _MIDDLEWARE]
    return list(vectors.values())


def _refuse_others(args: Namespace) -> None:
    """Raise ConfigError for options under which texts would not be steered, or without a proof."""
    from poolbench.errors import ConfigError

    if getattr(args, "middleware", None) is None:
        raise ConfigError("requests to `vllm serve` are steered, and this command has no server; leave it out")
    reasons = {
        "--worker-cls (steering has a worker of its own)": args.worker_cls not in ("auto", None)
        and "poolbench_steerer" not in args.worker_cls,
        "--data-parallel-size (one engine holds the vectors)": (args.data_parallel_size or 1) > 1,
        "--api-server-count (one server counts the steered texts)": (getattr(args, "api_server_count", 1) or 1) > 1,
        "--headless (it has no server for requests)": bool(getattr(args, "headless", False)),
        "--grpc (requests over HTTP are steered)": bool(getattr(args, "grpc", False)),
        "VLLM_USE_RUST_FRONTEND (vLLM's server in Python is steered)": os.environ.get("VLLM_USE_RUST_FRONTEND", "0")
        not in ("", "0"),
    }
    if refused := [reason for reason, in_use in reasons.items() if in_use]:
        raise ConfigError(f"does not go together with {'; '.join(refused)}; leave it out")


def _check(config: Any, vectors: list[Any]) -> None:
    """Raise PoolbenchError or RuntimeError, before the model is loaded, for what does not fit it."""
    from poolbench_steerer.plugin.internals import refuse_unsupported
    from poolbench_steerer.server.files import check_vectors

    refuse_unsupported(config)
    model = config.model_config
    check_vectors(vectors, model.get_hidden_size(), model.hf_text_config.num_hidden_layers)
