"""Steered against unsteered throughput, and against the reference's way.

    python bench/steer.py [--model demo] [--batch 256] [--tokens 24] [--pairs 5] [--prompt-tokens 12]

Ratios are medians over interleaved pairs in one engine (unsteered, steered, steered, unsteered ...), each run
from an empty prefix cache. ``steer.k<K>`` has K distinct (vector, layer, strength) settings in the batch, all
registered before; ``steer.cold`` registers 256 new vectors inside the measured time. The reference's way is
Transformers, one prompt at a time, its hook registered anew for each. Beside wall-clock ratios stand
ratios of CPU time (client and engine processes): where others use the machine too, only those are steady.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
from common import write_report

from poolbench.config import ModelRef, resolve_model
from poolbench_steerer.config import SteererConfig
from poolbench_steerer.engine import Generation, GenerationRequest, SteeringEngine
from poolbench_steerer.host import EngineHost
from poolbench_steerer.perplexity import score_continuations
from poolbench_steerer.plugin.spec import Edit, Steering

NUM_SETTINGS = (1, 8, 64, 256)
NUM_REGISTERED = 1000
ALPHA = 1.0  # small: the texts stay texts, and the work is the same at any strength


def main() -> None:
    """Runs all measurements on one engine and writes ``bench/out/steer.json``."""
    options = parse_options()
    model = resolve_model(options.model)
    config = SteererConfig(max_num_seqs=options.batch, max_model_len=512, max_steered_requests=2 * options.batch)
    host = EngineHost(config)
    try:
        ratios, figures = host.run(model, lambda engine: measure(engine, options))
        figures["engine_start_s"] = host.health()["start_s"]
    finally:
        host.close()
    reference = reference_rate(model, options)
    ratios["steer.vs_reference"] = figures["tokens_per_s"]["k256_steered"] / reference
    figures["tokens_per_s"]["reference"] = reference
    figures |= {
        "vllm": vllm_version(),
        "batch": options.batch,
        "new_tokens": options.tokens,
        "pairs": options.pairs,
        "model": model.id,
    }
    write_report("steer", ratios, figures)


def vllm_version() -> str:
    """The vLLM that ran, whichever package brought it."""
    import vllm

    return str(vllm.__version__)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=24, help="new tokens a request")
    parser.add_argument("--prompt-tokens", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--reference-prompts", type=int, default=8)
    return parser.parse_args()


async def measure(engine: SteeringEngine, options: argparse.Namespace) -> tuple[dict[str, float], dict[str, Any]]:
    """Ratios and figures of everything that runs in our engine."""
    rng = np.random.default_rng(0)
    width = engine.bank.width
    ids = await engine.register(unit_vectors(rng, max(NUM_SETTINGS), width))
    await run(engine, requests(engine, options, ids[:8]))  # warms up
    comparisons = Comparisons(engine, requests(engine, options, None), options.pairs)
    for num_settings in NUM_SETTINGS:
        steered = requests(engine, options, ids[:num_settings])
        await comparisons.add(f"k{num_settings}", lambda _, steered=steered: run(engine, steered))
    bursts = [unit_vectors(rng, max(NUM_SETTINGS), width) for _ in range(options.pairs)]
    await comparisons.add("cold", lambda index: cold_run(engine, options, bursts[index]))
    began = time.perf_counter()
    await engine.register(unit_vectors(rng, NUM_REGISTERED, width))
    registered_s = time.perf_counter() - began
    figures = comparisons.figures | {
        f"register_{NUM_REGISTERED}_vectors_s": registered_s,
        "perplexity_tokens_per_s": await perplexity_rate(engine, options),
    }
    return comparisons.ratios, figures


@dataclass(frozen=True)
class Rates:
    """New tokens per second of wall-clock time and of CPU time."""

    wall: float
    cpu: float


class Comparisons:
    """Interleaved pairs of an unsteered batch with others."""

    def __init__(self, engine: SteeringEngine, plain: Sequence[GenerationRequest], num_pairs: int) -> None:
        self._engine = engine
        self._plain = plain
        self._num_pairs = num_pairs
        self.ratios: dict[str, float] = {}
        self.figures: dict[str, Any] = {
            "tokens_per_s": {},
            "wall_ratios": {},
            "cpu_ratios": {},
            "cpu_ratio": {},
        }

    async def add(self, name: str, steered: Callable[[int], Awaitable[Rates]]) -> None:
        """Measures one kind of batch; every other pair runs in the other order."""
        pairs = []
        for index in range(self._num_pairs):
            if index % 2:
                rates = await steered(index)
                pairs.append((await run(self._engine, self._plain), rates))
            else:
                plain = await run(self._engine, self._plain)
                pairs.append((plain, await steered(index)))
        wall = sorted(b.wall / a.wall for a, b in pairs)
        cpu = sorted(b.cpu / a.cpu for a, b in pairs)
        self.ratios[f"steer.{name}"] = statistics.median(wall)
        self.figures["wall_ratios"][name] = [round(value, 3) for value in wall]
        self.figures["cpu_ratios"][name] = [round(value, 3) for value in cpu]
        self.figures["cpu_ratio"][name] = statistics.median(cpu)
        self.figures["tokens_per_s"][f"{name}_unsteered"] = statistics.median(a.wall for a, _ in pairs)
        self.figures["tokens_per_s"][f"{name}_steered"] = statistics.median(b.wall for _, b in pairs)


def unit_vectors(rng: np.random.Generator, count: int, width: int) -> list[np.ndarray]:
    """Random unit vectors."""
    matrix = rng.standard_normal((count, width)).astype(np.float32)
    return list(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))


def prompts(options: argparse.Namespace) -> list[tuple[int, ...]]:
    """Distinct prompts of ordinary token ids."""
    ids = np.random.default_rng(1).integers(300, 1000, size=(options.batch, options.prompt_tokens))
    return [tuple(row) for row in ids.tolist()]


def requests(engine: SteeringEngine, options: argparse.Namespace, ids: Sequence[str] | None) -> list[GenerationRequest]:
    """A batch whose requests take the settings in turn: another vector, layer and strength each."""
    made = []
    for index, prompt in enumerate(prompts(options)):
        steering = None
        if ids is not None:
            setting = index % len(ids)
            alpha = ALPHA * (1.0 + setting / max(NUM_SETTINGS))
            steering = Steering((Edit(ids[setting], setting % engine.num_layers, alpha),))
        made.append(GenerationRequest(prompt, options.tokens, steering, ignore_eos=True))
    return made


async def run(engine: SteeringEngine, batch: Sequence[GenerationRequest]) -> Rates:
    """One batch from an empty prefix cache."""
    await engine.llm.reset_prefix_cache()
    began, used = time.perf_counter(), cpu_seconds()
    return rates_of(await engine.generate(batch), began, used)


async def cold_run(engine: SteeringEngine, options: argparse.Namespace, vectors: Sequence[np.ndarray]) -> Rates:
    """One batch whose vectors are registered within the measured time."""
    await engine.llm.reset_prefix_cache()
    began, used = time.perf_counter(), cpu_seconds()
    ids = await engine.register(vectors)
    return rates_of(await engine.generate(requests(engine, options, ids)), began, used)


def rates_of(made: Sequence[Generation], began: float, used: float) -> Rates:
    """Rates of texts made since ``began`` (wall clock) and ``used`` (CPU seconds)."""
    num_tokens = sum(len(generation.token_ids) for generation in made)
    return Rates(num_tokens / (time.perf_counter() - began), num_tokens / (cpu_seconds() - used))


def cpu_seconds() -> float:
    """CPU time of this process and of the engine's so far."""
    me = psutil.Process()
    times = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def perplexity_rate(engine: SteeringEngine, options: argparse.Namespace) -> float:
    """Scored tokens per second of texts as long as the generated ones."""
    rng = np.random.default_rng(2)
    texts = rng.integers(300, 1000, size=(options.batch, options.tokens)).tolist()
    began = time.perf_counter()
    scored = await score_continuations(engine, list(zip(prompts(options), texts, strict=True)))
    return sum(score.num_tokens for score in scored) / (time.perf_counter() - began)


def reference_rate(model: ModelRef, options: argparse.Namespace) -> float:
    """New tokens per second of Transformers, one prompt at a time, the hook registered for each."""
    import torch
    from transformers import AutoModelForCausalLM

    decoder: Any = AutoModelForCausalLM.from_pretrained(model.source, dtype=getattr(torch, model.dtype)).eval()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoder.to(device)
    layers = decoder.model.layers
    vectors = unit_vectors(np.random.default_rng(0), options.reference_prompts, decoder.config.hidden_size)
    began = time.perf_counter()
    for index, vector in enumerate(vectors):
        delta = torch.tensor(vector, dtype=decoder.dtype, device=device) * ALPHA
        handle = layers[index % len(layers)].register_forward_hook(adding(delta))
        ids = torch.tensor([prompts(options)[index]], device=device)
        with torch.inference_mode():
            decoder.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                max_new_tokens=options.tokens, min_new_tokens=options.tokens,
            )  # fmt: skip
        handle.remove()
    return options.reference_prompts * options.tokens / (time.perf_counter() - began)


def adding(delta: Any) -> Any:
    """A forward hook that adds ``delta`` to a block's output."""

    def hook(_module: Any, _inputs: Any, output: Any) -> Any:
        return (output[0] + delta, *output[1:]) if isinstance(output, tuple) else output + delta

    return hook


if __name__ == "__main__":
    main()
