"""What a model does in extractor and steerer: batches, attention, steering, residual norms and attention sinks."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from poolbench.errors import PoolbenchError
from poolbench.model_folders.folders import list_folder
from poolbench.texts import load_calibration
from poolbench_driver.cluster.services import Services
from poolbench_driver.doctor.finding import Finding, Level

#: Largest relative change of a vector by its neighbours in a batch.
_ALLOWED = {"float32": 1e-4}
_ALLOWED_HALF = 5e-2
_NUM_TEXTS = 4


def model(connected: Services, name: str) -> Iterator[Finding]:
    """Let the extractor and the steerer load a model, and yield the findings about its vectors, steering and layers."""
    yield from _embedding(connected, name)
    check = f"steering of {name}"
    try:
        answer = connected.post("steerer", "check", {"model": list_folder(name)})
    except PoolbenchError as error:
        yield Finding(check, Level.FAILURE, str(error))
        return
    way, gap = max(answer["self_test"].items(), key=lambda item: item[1])
    yield Finding(check, Level.OK, f"self-test in {answer['dtype']}: largest difference {gap:.2g} ({way})")
    if (sums := answer["all_reduce"]) is not None:
        rate = sums["num_bytes"] / sums["median_s"] / 1e9
        what = f"states of {sums['num_tokens']} tokens over {sums['num_workers']} workers"
        yield Finding(f"all-reduce of {name}", Level.OK, f"{what}: {sums['median_s'] * 1e6:.0f} us, {rate:.2g} GB/s")
    for layer, norms in enumerate(answer["layers"]):
        yield Finding(f"layer {layer} of {name}", Level.OK, _norms(norms))
    yield _sinks(name, answer)


def _embedding(connected: Services, name: str) -> Iterator[Finding]:
    texts = load_calibration().column("text").to_pylist()[:_NUM_TEXTS]
    check = f"embedding by {name}"
    try:
        together = _embed(connected, name, texts)
        alone = [_embed(connected, name, [text])["vectors"][0] for text in texts]
        attention = _embed(connected, name, texts[:1], strategy="S1_attention")
    except PoolbenchError as error:
        yield Finding(check, Level.FAILURE, str(error))
        return
    if failed := [reason for reason in together["reason"] if reason]:
        yield Finding(check, Level.FAILURE, failed[0])
        return
    gap = max(_gap(*pair) for pair in zip(alone, together["vectors"], strict=True))
    allowed = _ALLOWED.get(together["dtype"], _ALLOWED_HALF)
    message = f"each text alone and beside others, in {together['dtype']}: largest relative difference {gap:.2g}"
    yield Finding(check, Level.OK if gap <= allowed else Level.FAILURE, f"{message} (at most {allowed:g} is allowed)")
    reason = attention["reason"][0]
    yield Finding(
        f"attention of {name}",
        Level.NOTE if reason else Level.OK,
        f"S1_attention: {reason}; leave it out of --strategies" if reason else "",
    )


def _embed(connected: Services, name: str, texts: list[str], strategy: str = "A1_mean") -> dict[str, Any]:
    return connected.post("extractor", "embed", {"model": list_folder(name), "texts": texts, "strategy": strategy})


def _gap(one: list[float] | None, other: list[float] | None) -> float:
    if one is None or other is None:
        return float("inf")
    a, b = np.array(one), np.array(other)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _norms(norms: dict[str, Any]) -> str:
    return (
        f"residual norm: median {norms['median_norm']:.4g}, mean {norms['mean_norm']:.4g}, "
        f"largest {norms['largest_norm']:,.0f}; {norms['num_sinks']} sinks"
    )


def _sinks(name: str, answer: dict[str, Any]) -> Finding:
    read = f"of {answer['num_tokens']} tokens of {answer['num_texts']} texts"
    if not answer["sinks"]:
        return Finding(f"sinks of {name}", Level.OK, f"none {read}")
    counts = ", ".join(f"{sink['token']!r} {sink['count']} ({sink['num_first']} first)" for sink in answer["sinks"])
    return Finding(
        f"sinks of {name}", Level.NOTE, f"{read}, by token and how often as the first token of its text: {counts}"
    )
