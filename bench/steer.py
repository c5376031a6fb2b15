"""Steered against unsteered throughput, and against the reference's way.

    python bench/steer.py [--model demo] [--batch 256] [--tokens 24] [--pairs 5] [--prompt-tokens 12]

Ratios are medians over interleaved pairs in one engine (unsteered, steered, steered, unsteered ...), each run
from an empty prefix cache. ``steer.k<K>`` has K distinct (vector, layer, strength) settings in the batch, all
registered before; ``steer.cold`` registers 256 new vectors inside the measured time. The reference's way is
Transformers, one prompt at a time, its hook registered anew for each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from common import write_report

from poolbench.config import ModelRef, resolve_model
from poolbench_steerer.config import SteererConfig
from poolbench_steerer.engine import GenerationRequest, SteeringEngine
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
    config = SteererConfig(
        max_num_seqs=options.batch, max_model_len=512, max_steered_requests=2 * options.batch
    )
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
        "batch": options.batch,
        "new_tokens": options.tokens,
        "pairs": options.pairs,
        "model": model.id,
    }
    write_report("steer", ratios, figures)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=24, help="new tokens a request")
    parser.add_argument("--prompt-tokens", type=int, default=12)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--reference-prompts", type=int, default=8)
    return parser.parse_args()


async def measure(
    engine: SteeringEngine, options: argparse.Namespace
) -> tuple[dict[str, float], dict[str, Any]]:
    """Ratios and figures of everything that runs in our engine."""
    rng = np.random.default_rng(0)
    ids = await engine.register(unit_vectors(rng, max(NUM_SETTINGS), engine.bank.width))
    await rate(engine, requests(engine, options, ids[:8]))  # warms up
    ratios, rates, spread = {}, {}, {}
    for num_settings in NUM_SETTINGS:
        steered = requests(engine, options, ids[:num_settings])
        pairs = [await pair(engine, options, steered, index) for index in range(options.pairs)]
        name = f"k{num_settings}"
        ratios[f"steer.{name}"] = statistics.median(b / a for a, b in pairs)
        spread[name] = sorted(round(b / a, 4) for a, b in pairs)
        rates[f"{name}_unsteered"] = statistics.median(a for a, _ in pairs)
        rates[f"{name}_steered"] = statistics.median(b for _, b in pairs)
    cold = [await cold_pair(engine, options, rng, index) for index in range(options.pairs)]
    ratios["steer.cold"] = statistics.median(b / a for a, b in cold)
    spread["cold"] = sorted(round(b / a, 4) for a, b in cold)
    began = time.perf_counter()
    await engine.register(unit_vectors(rng, NUM_REGISTERED, engine.bank.width))
    registered_s = time.perf_counter() - began
    figures = {
        "tokens_per_s": rates,
        "ratios_of_pairs": spread,
        f"register_{NUM_REGISTERED}_vectors_s": registered_s,
        "perplexity_tokens_per_s": await perplexity_rate(engine, options),
    }
    return ratios, figures


def unit_vectors(rng: np.random.Generator, count: int, width: int) -> list[np.ndarray]:
    """Random unit vectors."""
    matrix = rng.standard_normal((count, width)).astype(np.float32)
    return list(matrix / np.linalg.norm(matrix, axis=1, keepdims=True))


def prompts(options: argparse.Namespace) -> list[tuple[int, ...]]:
    """Distinct prompts of ordinary token ids."""
    ids = np.random.default_rng(1).integers(300, 1000, size=(options.batch, options.prompt_tokens))
    return [tuple(row) for row in ids.tolist()]


def requests(
    engine: SteeringEngine, options: argparse.Namespace, ids: Sequence[str] | None
) -> list[GenerationRequest]:
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


async def rate(engine: SteeringEngine, batch: Sequence[GenerationRequest]) -> float:
    """New tokens per second of one batch from an empty prefix cache."""
    await engine.llm.reset_prefix_cache()
    began = time.perf_counter()
    made = await engine.generate(batch)
    return sum(len(generation.token_ids) for generation in made) / (time.perf_counter() - began)


async def pair(
    engine: SteeringEngine, options: argparse.Namespace, steered: Sequence[GenerationRequest], index: int
) -> tuple[float, float]:
    """Rates (unsteered, steered); every other pair in the other order."""
    plain = requests(engine, options, None)
    if index % 2:
        rate_steered = await rate(engine, steered)
        return await rate(engine, plain), rate_steered
    rate_plain = await rate(engine, plain)
    return rate_plain, await rate(engine, steered)


async def cold_pair(
    engine: SteeringEngine, options: argparse.Namespace, rng: np.random.Generator, index: int
) -> tuple[float, float]:
    """Rates (unsteered, steered with vectors that are registered within the measured time)."""
    vectors = unit_vectors(rng, max(NUM_SETTINGS), engine.bank.width)

    async def cold() -> float:
        await engine.llm.reset_prefix_cache()
        began = time.perf_counter()
        ids = await engine.register(vectors)
        made = await engine.generate(requests(engine, options, ids))
        return sum(len(generation.token_ids) for generation in made) / (time.perf_counter() - began)

    plain = requests(engine, options, None)
    if index % 2:
        rate_cold = await cold()
        return await rate(engine, plain), rate_cold
    rate_plain = await rate(engine, plain)
    return rate_plain, await cold()


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

    decoder: Any = AutoModelForCausalLM.from_pretrained(
        model.source, dtype=getattr(torch, model.dtype)
    ).eval()
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
