"""Throughput of the steered engine against vLLM's default engine, and against the reference code.

    python bench/steer.py [--model demo] [--batch 256] [--tokens 64] [--pairs 9] [--smallest]

bench/README.md explains each ratio. About 3 minutes on two quiet cores.
"""

import argparse
from typing import Any

from common import Parser, write_report
from steering.batches import Sizes
from steering.default import DefaultEngine
from steering.measure import NUM_REGISTERED, measure, perplexity_rate, registration_s
from steering.reference import reference_rate
from steering.scorers import shared_pass

from poolbench.config import resolve_model
from poolbench.settings import SteererSettings
from poolbench.texts import load_calibration
from poolbench_steerer.engine import SteeringEngine
from poolbench_steerer.host import EngineHost
from poolbench_steerer.service import SteererService


def main() -> None:
    """Run all measurements on one engine and write `bench/out/steer.json`."""
    options = parse_options()
    model, sizes = resolve_model(options.model), options.sizes
    config = SteererSettings(max_num_seqs=sizes.batch, max_model_len=512, max_steered_requests=2 * sizes.batch)
    service = SteererService(EngineHost(config))

    async def in_engine(engine: SteeringEngine) -> tuple[dict[str, Any], dict[str, Any]]:
        default = DefaultEngine.start(model, config)
        try:
            compared = await measure(engine, default, sizes)
        finally:
            default.llm.shutdown()
        beside = {
            f"register_{NUM_REGISTERED}_vectors_s": await registration_s(engine),
            "perplexity_tokens_per_s": await perplexity_rate(engine, sizes),
        }
        return compared, beside

    try:
        compared, figures = service.host.run(model, in_engine)
        figures |= {"steered": compared, "engine_start_s": service.host.health()["start_s"]}
    finally:
        service.host.close()
    figures["scoring"] = shared_pass(load_calibration()["text"].to_pylist()[: 8 if options.smallest else None])
    reference = reference_rate(model, sizes, options.reference_prompts)
    ratios = {f"steer.{name}": comparison["ratio"] for name, comparison in compared.items()}
    ratios["steer.vs_reference"] = compared[f"k{max(sizes.settings)}"]["tokens_per_s"] / reference
    figures |= {"reference_tokens_per_s": reference, "vllm": vllm_version()}
    write_report("steer", options, ratios, figures)


def vllm_version() -> str:
    """Return the version of vLLM, from whatever package it was installed."""
    import vllm

    return str(vllm.__version__)


def parse_options() -> argparse.Namespace:
    """Parse the command line, including `sizes`."""
    parser = Parser(__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--batch", type=int, default=Sizes.batch)
    parser.add_argument("--tokens", type=int, default=Sizes.tokens, help="new tokens a request")
    parser.add_argument("--prompt-tokens", type=int, default=Sizes.prompt_tokens)
    parser.add_argument("--pairs", type=int, default=Sizes.pairs)
    parser.add_argument("--reference-prompts", type=int, default=8)
    options = parser.options(tokens=2, pairs=1, reference_prompts=1)
    options.sizes = Sizes(options.batch, options.tokens, options.prompt_tokens, options.pairs)
    return options


if __name__ == "__main__":
    main()
