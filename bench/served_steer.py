"""Steered against unsteered generation over HTTP, on the local cluster that runs: no engine of its own has to start.

    python bench/served_steer.py [--model smollm2-135m] [--texts 128] [--tokens 64] [--pairs 3]

Each request holds all texts, each steered request one vector drawn at random. `served.steer` is the ratio of new tokens
per second, steered over unsteered: the median of interleaved pairs. It writes `bench/out/served_steer.json`.
"""

import statistics
import time
from typing import Any

import numpy as np
from common import Parser, write_report

from poolbench_driver.cluster.services import Services
from poolbench_driver.cluster.session import open_session
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.models import describe_model

#: Small beside the residual norms of a middle block, so that the texts stay texts.
STRENGTH = 0.05


def main() -> None:
    """Measure and write the report."""
    parser = Parser(__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--texts", type=int, default=128, help="texts of each request")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each text")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.options(texts=2, tokens=4, pairs=1)
    services = open_session().services
    model = describe_model(load_run_config(None, {"model": options.model}), services)
    vector = np.random.default_rng(0).normal(size=model.width)
    layer = model.num_blocks // 2
    edit = {"vector": (vector / np.linalg.norm(vector)).tolist(), "layer": layer, "strength": STRENGTH}
    plain: dict[str, Any] = {
        "prompt": [f"The report number {number} describes" for number in range(options.texts)],
        "model": options.model,
        "max_tokens": options.tokens,
        "temperature": 0,
    }
    sides = {"unsteered": plain, "steered": plain | {"steering": {"edits": [edit], "positions": "generated"}}}
    for body in sides.values():
        tokens_per_s(services, body)  # loads the model, and compiles what the first request compiles
    pairs = [{side: tokens_per_s(services, body) for side, body in sides.items()} for _ in range(options.pairs)]
    ratios = [pair["steered"] / pair["unsteered"] for pair in pairs]
    write_report("served_steer", options, {"served.steer": statistics.median(ratios)}, {"pairs": pairs, "layer": layer})


def tokens_per_s(services: Services, body: dict[str, Any]) -> float:
    """Return the new tokens per second of one request."""
    began = time.perf_counter()
    answer = services.post("steerer", "v1/completions", body)
    return float(answer["usage"]["completion_tokens"] / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
