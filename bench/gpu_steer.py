"""The steering benchmark on one GPU with CUDA graphs, at the shape of Llama-3.1-8B with random weights.

    python bench/gpu_steer.py [--device cuda|cpu] [--shape llama-3.1-8b|tiny] [--batches 256,512] [--tokens 200]

It needs no network, only vLLM (the pinned one or 0.25.x), PyTorch, Transformers and this project's packages.
It writes `bench/out/gpu_steer.json`. The weights (16 GB at full shape) go into a folder of their own under
`--scratch` and are removed at the end. `--smallest --device cpu` runs anywhere, as a check of itself.
"""

import argparse
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil
from common import Parser, require_device, write_report
from steer import vllm_version
from steering.batches import Sizes
from steering.default import DefaultEngine
from steering.measure import NUM_REGISTERED, measure, perplexity_rate, registration_s
from steering.model import SHAPES, random_model
from steering.reference import reference_rate

from poolbench.config import ModelRef
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.host import EngineHost

#: Batch that the ratios without a batch in their id are of.
MAIN_BATCH = 256


def main() -> None:
    """Run the benchmark and write its report."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="poolbench-gpu-steer-", dir=options.scratch) as folder:
        model = random_model(Path(folder), SHAPES[options.shape], options.device)
        batches, figures = measure_engine(model, options)
        reference = None
        if options.reference_prompts:
            reference = reference_rate(model, sizes_of(options, options.batches[0]), options.reference_prompts)
    ratios = {name: value["ratio"] for batch in batches for name, value in named(batch, batches[batch])}
    steered = batches[options.batches[0]][f"k{max(options.settings)}"]["tokens_per_s"]
    ratios["steer.vs_reference"] = None if reference is None else steered / reference
    figures |= {"batches": {str(batch): value for batch, value in batches.items()}, "reference_tokens_per_s": reference}
    figures |= {"shape": vars(SHAPES[options.shape]), "environment": environment()}
    write_report("gpu_steer", options, ratios, figures)


def named(batch: int, compared: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the comparisons by ratio id: `steer.k256`, and `steer.k256.batch512` for other batches."""
    suffix = "" if batch == MAIN_BATCH else f".batch{batch}"
    return [(f"steer.{name}{suffix}", value) for name, value in compared.items()]


def measure_engine(model: ModelRef, options: argparse.Namespace) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
    """Return the comparisons by batch, and the figures of the engine that ran all of them."""
    most = max(options.batches)
    window = options.prompt_tokens + options.tokens + 8
    config = SteererSettings(
        device=options.device, max_num_seqs=most, max_model_len=max(64, window), max_steered_requests=2 * most,
        max_num_batched_tokens=max(8192, 2 * most) if options.device == "cuda" else 2048,
        gpu_memory_share=options.memory_share / 2, enforce_eager=options.eager or None,
    )  # fmt: skip
    host = EngineHost(config)

    async def in_engine(engine: SteeringEngine) -> tuple[dict[int, dict[str, Any]], dict[str, Any]]:
        default = DefaultEngine.start(model, config)
        try:
            comparisons = {batch: await measure(engine, default, sizes_of(options, batch)) for batch in options.batches}
        finally:
            default.llm.shutdown()
        return comparisons, {
            f"register_{NUM_REGISTERED}_vectors_s": await registration_s(engine),
            "perplexity_tokens_per_s": await perplexity_rate(engine, sizes_of(options, options.batches[0])),
            "runner": engine.runner,
            "eager": engine.eager,
        }

    try:
        comparisons, figures = host.run(model, in_engine)
        health = host.health()
        figures |= {"engine_start_s": health["start_s"], "self_test": health["self_test"], "memory": memory(options)}
    finally:
        host.close()
    return comparisons, figures


def sizes_of(options: argparse.Namespace, batch: int) -> Sizes:
    """Return the sizes of one batch."""
    return Sizes(batch, options.tokens, options.prompt_tokens, options.pairs, options.settings)


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Return the memory of the running engine: on the device (KV cache included), and resident on the host."""
    me = psutil.Process()
    resident = sum(process.memory_info().rss for process in (me, *me.children(recursive=True)))
    sizes: dict[str, Any] = {"host_resident_bytes": resident}
    if options.device == "cuda":
        sizes["device"] = smi("memory.used,memory.total")
    return sizes


def environment() -> dict[str, Any]:
    """Return device, driver, and the versions that ratios depend on."""
    import torch

    versions: dict[str, Any] = {"vllm": vllm_version(), "torch": torch.__version__, "python": platform.python_version()}
    if torch.cuda.is_available():
        versions |= {"cuda": torch.version.cuda, "gpu": smi("name,driver_version,memory.total")}
    return versions


def smi(query: str) -> str:
    """Return a line of nvidia-smi, or its error."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi failed: {type(error).__name__}"


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="llama-3.1-8b")
    parser.add_argument("--batches", type=numbers, default=(256, 512))
    parser.add_argument("--settings", type=numbers, default=Sizes.settings, help="distinct settings in a batch")
    parser.add_argument("--tokens", type=int, default=200, help="new tokens a request")
    parser.add_argument("--prompt-tokens", type=int, default=Sizes.prompt_tokens)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--reference-prompts", type=int, default=3, help="0 leaves the reference's way out")
    parser.add_argument("--memory-share", type=float, default=0.85, help="of both engines")
    parser.add_argument("--eager", action="store_true", help="without CUDA graphs, to compare")
    parser.add_argument("--scratch", type=Path, default=None, help="folder for the weights")
    options = parser.options(shape="tiny", tokens=2, pairs=1, reference_prompts=1)
    require_device(options.device)
    return options


def numbers(text: str) -> tuple[int, ...]:
    """Parse numbers separated by commas."""
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
