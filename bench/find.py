"""What finding a vector costs: minimal pairs under steering, texts of lazy reading, and a whole search.

    python bench/find.py [--model demo] [--pairs 1000] [--rounds 5] [--smallest]

Each pair is read under one of 19 vectors at one of 6 strengths, in turn; nothing but its likelihood is computed.
`find.pairs_rate` is the ratio of sentences per second, steered over unsteered: the median over interleaved parts of all
rounds, which are short, so that other work on the machine meets both sides.
`lazy.texts` is the share of the steered texts of the preset `full` that a run with lazy reading generates at most.
If a local cluster runs (`make cluster-up`), the figures have the seconds of `find contrast`, and the tasks that one
more vector of the concept, by another construction, sends then.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import numpy as np
from common import Parser, write_report
from deploy.local.state import load, state_folder
from steering.batches import ALPHA, ORDINARY, unit_vectors
from steering.rates import Rates, compared, interleaved, run

from poolbench.config import resolve_model
from poolbench.settings import SteererSettings
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import ModelInfo
from poolbench_driver.stages.plan import num_texts
from poolbench_driver.stages.scope import Scope, resolve_names
from poolbench_steerer.engine import GenerationRequest, SteeringEngine
from poolbench_steerer.host import EngineHost
from poolbench_steerer.plugin.spec import Edit, Steering

NUM_VECTORS, NUM_STRENGTHS = 19, 6
#: Parts of the pairs, each measured on both sides in turn.
NUM_PARTS = 5
#: Tokens of a sentence of BLiMP, about.
NUM_TOKENS = 10


def minimal_pairs(num_pairs: int) -> list[tuple[int, ...]]:
    """Return the sentences of synthetic pairs, which differ in one token."""
    rng, sentences = np.random.default_rng(0), list[tuple[int, ...]]()
    for good in rng.integers(ORDINARY[0], ORDINARY[1], size=(num_pairs, NUM_TOKENS)).tolist():
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


def lazy_texts() -> float:
    """Return the steered texts of the preset `full` with lazy reading over those without."""
    counts = []
    for reading in ("lazy", "whole"):
        settings = {
            "preset": "full",
            "model": "demo",
            "corpus": {"source": "planted"},
            "steering": {"reading": reading},
        }
        config, strategies = resolve_names(load_run_config(None, settings))  # type: ignore[arg-type]
        model = ModelInfo(resolve_model("demo"), num_blocks=6, width=256)
        counts.append(num_texts(Scope(config, model, tuple(strategies)))["steered"])
    return counts[0] / counts[1]


def search(*further: str) -> tuple[float, dict[str, int]]:
    """Return the seconds of a search on the local cluster, and the tasks that it sent, by kind."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["find", "contrast", "--output", f"{folder}/vector", "--runs", f"{folder}/runs", "--display", "json"]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "poolbench_driver.cli", *command, *further],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    sent = Counter(event["kind"] for event in events if event["event"] == "done" and not event["reused"])
    return time.monotonic() - began, dict(sent)


def searched() -> dict[str, Any]:
    """Return the figures of two searches; why not where no local cluster runs."""
    cluster = load(state_folder())
    if cluster is None or not cluster.runs():
        return {"find_s": None, "reason": "no local cluster runs: start one with `make cluster-up`"}
    seconds, sent = search()
    further_s, sent_further = search("--constructions", "C1,C3")
    return {"find_s": seconds, "sent": sent, "further_s": further_s, "sent_for_one_more_vector": sent_further}


def main() -> None:
    """Measure and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--pairs", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.options(pairs=10, rounds=1)
    model, sentences = resolve_model(options.model), minimal_pairs(options.pairs)
    host = EngineHost(SteererSettings(max_model_len=512))

    async def measure(engine: SteeringEngine) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        ids = await engine.register(unit_vectors(rng, NUM_VECTORS, engine.bank.width))
        plain = requests(sentences, engine.num_layers // 2, None)
        steered = requests(sentences, engine.num_layers // 2, list(ids))

        size = 2 * -(-options.pairs // NUM_PARTS)

        def part(batch: list[GenerationRequest], index: int) -> list[GenerationRequest]:
            begin = index % NUM_PARTS * size
            return batch[begin : begin + size]

        async def unsteered(index: int) -> Rates:
            return await run(engine, part(plain, index))

        async def along(index: int) -> Rates:
            return await run(engine, part(steered, index))

        await unsteered(0)
        await along(0)  # both ways are warm
        return compared((await interleaved(unsteered, {"pairs": along}, options.rounds * NUM_PARTS))["pairs"])

    try:
        figures = host.run(model, measure)
    finally:
        host.close()
    settings = {"vectors": NUM_VECTORS, "strengths": NUM_STRENGTHS, "sentences": len(sentences)}
    ratios = {"find.pairs_rate": figures["ratio"], "lazy.texts": lazy_texts()}
    write_report("find", options, ratios, {**figures, **settings, **({} if options.smallest else searched())})


if __name__ == "__main__":
    main()
