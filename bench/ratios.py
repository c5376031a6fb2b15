"""The ratios of each benchmark and their targets. README.md explains them."""

_EXTRACT = {
    "extract.overhead": "<= 1.10",
    "extract.gradient_overhead": "<= 3.0",
    "extract.vs_reference": ">= 5",
    "extract.bytes_fraction": "<= .05",
    "extract.peak_memory": "<= 1.2",
}
_VERBS = (
    *("extractor/embed", "pooler/annotate", "pooler/pool", "prober/probe", "prober/direction"),
    *("scorer/score", "steerer/generate", "steerer/perplexity"),
)


def _steer(target: str) -> dict[str, str]:
    steered = {f"steer.k{number}": target for number in (1, 8, 64, 256)}
    return (
        {"steer.unsteered": ">= .99"}
        | steered
        | {"steer.reading": ">= .98", "steer.cold": ">= .90", "steer.vs_reference": ">= 10"}
    )


#: The ratios that each benchmark writes at its default and at its smallest size, with the target or "" for none.
RATIOS: dict[str, dict[str, str]] = {
    "adhoc": {"adhoc.p95_s": "<= 2"}
    | {f"adhoc.p95_s.{verb}": "<= 2" for verb in _VERBS}
    | {f"adhoc.vs_alone.{verb}": "" for verb in _VERBS},
    "ce": {"ce.vs_reference": ">= 10", "ce.forwards": "<= 1.0", "ce.largest_difference": ""},
    "console": {
        "console.first_view_s": "<= 2",
        "console.sort_s": "<= .1",
        "console.filter_s": "<= .1",
        "console.tab_mb": "<= 300",
        "console.file_mb": "<= 1.5",
        "console.file_write_s": "<= 3",
        "console.file_first_view_s": "<= .3",
        "console.file_interactive_s": "<= 1",
    },
    "corpus": {
        "corpus.validate_within_target": ">= 1",
        "corpus.near_within_target": ">= 1",
    },
    "extract": _EXTRACT,
    "find": {"find.pairs_rate": ">= .95", "lazy.texts": "<= .67"},
    "gpu_extract": _EXTRACT,
    "gpu_probe": {"probe.seconds_for_10000": "<= 60"},
    "gpu_steer": _steer(">= .97") | {f"steer.{name}.batch512": ">= .97" for name in ("k1", "k8", "k64", "k256")}
    | {"steer.unsteered.batch512": ">= .99", "steer.reading.batch512": ">= .98", "steer.cold.batch512": ">= .90"},
    "holmes": {
        "holmes.vs_reference": ">= 10",
        "holmes.forwards": "<= 1.0",
        "holmes.probe_vs_adam": ">= 5",
        "holmes.probe_dev_score": ">= 1",
    },
    "idle": {"idle.cores": "<= .1", "idle.memory_gb": "<= 5"},
    "limits": {"limits.wrong": "<= .05", "limits.found": ">= .9"},
    "pilots": {
        "pilots.vs_sklearn": ">= 10",
        "pilots.vs_sklearn_five_classes": "",
        "pilots.within_target": ">= 1",
        "pilots.same_answers": ">= .99",
    },
    "probe": {"probe.vs_sklearn": ">= 10"},
    "queue": {
        f"queue.{name}.{broker}": target
        for broker in ("folder", "redis")
        for name, target in (
            ("latency_p50_s", ""), ("latency_p95_s", "<= .25"), ("enqueued_per_s", ""), ("driver_round_ms", ""),
        )
    },
    "scale": {
        "scale.efficiency_64": ">= .9",
        "scale.bound_64": "",
        "scale.driver_cores_64": "<= 1",
        "scale.loop_cores": "<= 1",
        "scale.loop_memory_vs_bar": "<= 1",
        "scale.loop_round_p95_s": "<= .5",
    },
    "scale_check": {"scale_check.simulated_vs_real": "", "scale_check.vs_tolerance": "<= 1"},
    "served_steer": {"served.steer": ""},
    "steer": _steer(">= .95"),
    "store": {
        "store.put_rate": ">= 200",
        "store.put_rate_vs_folder": "",
        "store.requests_per_commit": "<= 2",
        "store.put_mb_per_s": "",
        "store.get_mb_per_s": "",
    },
}  # fmt: skip


def verdict(value: float | None, target: str) -> str:
    """Return whether a value is within its target, such as `<= 1.10`; nothing if it has none."""
    if value is None or not target:
        return ""
    relation, limit = target.split()
    held = value <= float(limit) if relation == "<=" else value >= float(limit)
    return "held" if held else "missed"
