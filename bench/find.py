"""Minimal pairs under steering against the same pairs unsteered, in one engine: what a found vector is judged by.

    python bench/find.py [--model demo] [--pairs 1000] [--rounds 5] [--smallest]

Each pair is read under one of 19 vectors at one of 6 strengths, in turn; nothing but its likelihood is computed.
`find.pairs_rate` is the ratio of sentences per second, steered over unsteered: the median of interleaved rounds.
"""

from typing import Any

import numpy as np
from common import Parser, write_report
from steering.batches import ALPHA, ORDINARY, unit_vectors
from steering.rates import Rates, compared, interleaved, run

from poolbench.config import resolve_model
from poolbench.settings import SteererSettings
from poolbench_steerer.engine import GenerationRequest, SteeringEngine
from poolbench_steerer.host import EngineHost
from poolbench_steerer.plugin.spec import Edit, Steering

NUM_VECTORS, NUM_STRENGTHS = 19, 6
#: Tokens of a sentence of BLiMP, about.
NUM_TOKENS = 10


def minimal_pairs(num_pairs: int) -> list[tuple[int, ...]]:
    """Return the sentences of synthetic pairs, which differ in one token."""
    rng, sentences = np.random.default_rng(0), list[tuple[int, ...]]()
    for good in rng.integers(*ORDINARY, size=(num_pairs, NUM_TOKENS)).tolist():
        place = int(rng.integers(NUM_TOKENS))
        bad = [
            *good[:place],
            ORDINARY[0] + (good[place] + 1 - ORDINARY[0]) % np.diff(ORDINARY).item(),
            *good[place + 1 :],
        ]
        sentences += [tuple(good), tuple(bad)]
    return sentences


def requests(sentences: list[tuple[int, ...]], layer: int, ids: list[str] | None) -> list[GenerationRequest]:
    """Return one request per sentence for its likelihood; both of a pair have the same setting, none without ids."""
    batch = []
    for number, sentence in enumerate(sentences):
        steering = None
        if ids is not None:
            vector, strength = divmod(number // 2 % (len(ids) * NUM_STRENGTHS), NUM_STRENGTHS)
            steering = Steering((Edit(ids[vector], layer, ALPHA * (1 + strength)),), "all")
        batch.append(GenerationRequest(sentence, 1, steering, ignore_eos=True, prompt_logprobs=0))
    return batch


def main() -> None:
    """Measure and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.options(pairs=8, rounds=1)
    model, sentences = resolve_model(options.model), minimal_pairs(options.pairs)
    host = EngineHost(SteererSettings(max_model_len=512))

    async def measure(engine: SteeringEngine) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        ids = await engine.register(unit_vectors(rng, NUM_VECTORS, engine.bank.width))
        plain = requests(sentences, engine.num_layers // 2, None)
        steered = requests(sentences, engine.num_layers // 2, list(ids))

        async def unsteered(_: int) -> Rates:
            return await run(engine, plain)

        async def along(_: int) -> Rates:
            return await run(engine, steered)

        await unsteered(0)
        await along(0)  # both ways are warm
        return compared((await interleaved(unsteered, {"pairs": along}, options.rounds))["pairs"])

    try:
        figures = host.run(model, measure)
    finally:
        host.close()
    settings = {"vectors": NUM_VECTORS, "strengths": NUM_STRENGTHS, "sentences": len(sentences)}
    write_report("find", options, {"find.pairs_rate": figures["ratio"]}, figures | settings)


if __name__ == "__main__":
    main()
