"""All figures of one model: overheads, the reference code, bytes."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from extraction.timing import interleave, ratio, seconds, warm
from extraction.ways import REFERENCE_BATCH, Reference, Workload, ours, ours_written, plain, requests_of


def overheads(work: Workload, rounds: int) -> dict[str, Any]:
    """Compare the plain forward pass with ours, for the card's strategies and for those of all boards."""
    sides = {
        "plain": partial(plain, work),
        "card": partial(ours, work, requests_of()),
        "all_boards": partial(ours, work, requests_of(None)),
    }
    return _against_plain(work, sides, rounds) | {
        "strategies": [request.id for request in requests_of()],
        "strategies_of_all_boards": len(requests_of(None)),
    }


def gradient_overhead(work: Workload, rounds: int) -> dict[str, Any]:
    """Measure the overhead with the strategies that need the loss; or give the reason why there is none."""
    added = {request.id for request in requests_of(gradient=True)} - {request.id for request in requests_of()}
    if not added:
        return {"reason": "no strategy of the card needs the loss gradient"}
    sides = {"plain": partial(plain, work), "gradient": partial(ours, work, requests_of(gradient=True))}
    return _against_plain(work, sides, rounds) | {"added": sorted(added)}


def against_reference(work: Workload, rounds: int) -> dict[str, Any]:
    """Compare the reference code with ours, tables written."""
    with TemporaryDirectory() as folder:
        place = Path(folder)
        ways = {
            "published": Reference(REFERENCE_BATCH, every_layer=False, folder=place),
            "published_in_memory": Reference(REFERENCE_BATCH, every_layer=False),
            "one_by_one_all_layers": Reference(1, every_layer=True, folder=place),
            "one_by_one_all_layers_in_memory": Reference(1, every_layer=True),
        }
        sides = {"ours": partial(ours_written, work, requests_of(), place)}
        sides |= {name: partial(way, work, requests_of()) for name, way in ways.items()}
        warm({name: sides[name] for name in ("ours", "published")})
        laps = interleave(sides, rounds)
    ratios = {name: ratio(laps[name], laps["ours"]) for name in ways}
    return {"ratios": ratios, "laps": seconds(laps), "passages": len(work.passages)}


def bytes_written(work: Workload) -> dict[str, Any]:
    """Return the bytes of the card's tables without S3, against the states of the same layers."""
    with TemporaryDirectory() as folder:
        written = ours_written(work, requests_of(gradient=True), Path(folder))
    numbers = work.num_tokens * work.decoder.width * len(work.layers)
    itemsize = work.decoder.model.dtype.itemsize
    return {
        "written": written,
        "strategies": len(requests_of(gradient=True)),
        "states_as_kept": 4 * numbers,  # kept states are float32 whatever the model's type
        "states_in_model_dtype": itemsize * numbers,
        "fraction": written / (4 * numbers),
        "fraction_of_model_dtype": written / (itemsize * numbers),
    }


def measure(work: Workload, rounds: int, *, slow_share: float = 0.5) -> dict[str, Any]:
    """Return all figures but memory. The slow sides get `slow_share` of the passages, and few rounds."""
    few = work.first(max(1, round(len(work.passages) * slow_share)))
    return {
        "model": describe(work),
        "overhead": overheads(work, rounds),
        "gradient": gradient_overhead(few, min(rounds, 3)),
        "reference": against_reference(few, min(rounds, 2)),
        "bytes": bytes_written(work),
    }


def ratios_of(figures: dict[str, Any], memory: dict[str, Any]) -> dict[str, float | None]:
    """Return the ratios by id; None if a figure has a reason instead."""
    gradient = figures["gradient"].get("ratios", {}).get("gradient", {})
    return {
        "extract.overhead": figures["overhead"]["ratios"]["card"]["median"],
        "extract.gradient_overhead": gradient.get("median"),
        "extract.vs_reference": figures["reference"]["ratios"]["published"]["median"],
        "extract.bytes_fraction": figures["bytes"]["fraction"],
        "extract.peak_memory": memory.get("total_ratio", {}).get("ours"),
    }


def _against_plain(work: Workload, sides: dict[str, partial], rounds: int) -> dict[str, Any]:
    warm(sides)
    laps = interleave(sides, rounds)
    return {
        "ratios": {name: ratio(laps[name], laps["plain"]) for name in sides if name != "plain"},
        "tokens_per_s": {name: work.num_tokens / min(lap.wall_s for lap in items) for name, items in laps.items()},
        "laps": seconds(laps),
        "passages": len(work.passages),
    }


def describe(work: Workload) -> dict[str, Any]:
    """Return model, layers and passages, for the report."""
    model = work.decoder.model
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(model.dtype),
        "width": work.decoder.width,
        "blocks": work.decoder.num_blocks,
        "layers": list(work.layers),
        "tokens_a_passage": work.passages[0].num_positions,
        "batch_tokens": work.limits.max_tokens,
    }
