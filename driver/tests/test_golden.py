"""No figure moves: configuration, tasks, keys and result tables of fixed runs are those of the commit that made them.

`golden.json` was written at commit 12f51269, before PoolBench became one suite among several. A raised version of a
step, metric, strategy or corpus moves it on purpose (``python -m driver.tests.test_golden`` writes it again); nothing
else may.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.conftest import BUDGET, WIDTH, SteeredArtifacts

from poolbench.concepts import CONCEPTS
from poolbench.config import ModelRef
from poolbench.contracts import tables as t
from poolbench.contracts.keys import digest
from poolbench.contracts.measures import Measure
from poolbench_driver.assemble import assemble
from poolbench_driver.config import RunConfig, of_concepts
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.models import ModelInfo
from poolbench_driver.records import run_id
from poolbench_driver.results import DIGEST_DECIMALS, VOLATILE, results_digest
from poolbench_driver.stages.plan import ConceptsPlan, make_plan
from poolbench_driver.stages.probes import ConceptProbes
from poolbench_driver.stages.scope import Scope, resolve_names
from poolbench_driver.suites.planted.config import PlantedConfig
from poolbench_driver.suites.planted.register import register
from poolbench_driver.suites.planted.suite import PlantedScope

GOLDEN = Path(__file__).parent / "golden.json"
#: The text that a pretrained model read by default, before the repository had real text.
PLANTED: dict[str, Any] = {"corpus": {"source": "planted"}}
#: The presets, with all openings at every strength, as runs were before lazy reading.
WHOLE: dict[str, Any] = {"steering": {"reading": "whole"}}
CONFIGS: dict[str, dict[str, Any]] = {
    "demo": {"preset": "demo", **WHOLE},
    "lazy": {"preset": "demo"},
    "card": {"preset": "card", "model": "llama-3.1-8b"},
    "full": {"preset": "full", "model": "llama-3.1-8b", **PLANTED, **WHOLE},
    "small": {"preset": "small", **PLANTED, **WHOLE},
    "real": {"preset": "small"},
    "planted": {"preset": "demo", "suite": "planted"},
}
#: What makes the tables of a run quickly.
FEW: dict[str, Any] = {
    "budget": BUDGET,
    "fold_seeds": [1],
    "strategies": ["P1_last_token", "A1_mean", "W2_last_k", "S1_attention", "L5_keyword"],
}
#: The same with passages that every machine has, runs with settings that those do not have, and small runs whose tables
#: are compared too.
CARD: dict[str, Any] = {**CONFIGS["card"], "corpus": {"source": "planted"}}
PLANS: dict[str, dict[str, Any]] = {
    **CONFIGS,
    "card": CARD,
    "published": {**CARD, "include_bos": False, "scorer_base": "minilm", "layers": None, "steering_layer": 0.5},
    "kept": {
        **WHOLE,
        "preset": "demo",
        "keep_activations": True,
        "strategies": ["card", "extended", "S3_iti_probe", "X1_learned_query"],
    },
    "sampled": {
        "preset": "demo",
        "steering": {"temperature": 0.8, "num_samples": 3, "reading": "whole"},
        "layer_choice": "nested",
        "seed": 7,
    },
}
TABLES: dict[str, dict[str, Any]] = {
    "demo": {**PLANS["demo"], **FEW},
    "card": {**CARD, "concepts": ["contrast", "toxicity"], "strategies": ["A1_mean", "P1_last_token"]}
    | {"budget": {"num_openings": 10, "num_bootstrap": 20, "num_nulls": 20}, "layer_choice": "nested"},
    "lazy": {**PLANS["lazy"], **FEW},
    "planted": {**PLANS["planted"], "strategies": FEW["strategies"]},
}


def configured(settings: dict[str, Any], folder: Path) -> RunConfig:
    """The configuration; a suite puts its concepts into a store in the folder."""
    from poolbench.storage import open_store

    config = load_run_config(None, settings)
    if config.suite == "planted":
        register(open_store(str(folder / "store")))
    return config


def planned(config: RunConfig) -> ConceptsPlan:
    resolved, strategies = resolve_names(config.probing if isinstance(config, PlantedConfig) else of_concepts(config))
    model = ModelInfo(ModelRef(config.model, f"/models/{config.model}", "local-0", "float32"), 32, WIDTH)
    scope = Scope(resolved, model, tuple(strategies), "1.0")
    if isinstance(config, PlantedConfig):
        named = config.model_copy(update={"strategies": resolved.strategies})
        return SUITES.get("planted").load().plan(PlantedScope(named, scope))
    return make_plan(scope)


def of_config(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a run is called."""
    config = configured(settings, folder)
    return {"config_hash": config.config_hash(), "run_id": run_id(config)}


def of_plan(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Digests of what a run sends, in its order."""
    plan = planned(configured(settings, folder))
    return {
        "tasks": digest([task.model_dump(mode="json") for task in plan.tasks.values()], 16),
        "keys": digest(sorted(plan.keys), 16),
        "local": digest(list(plan.local), 16),
    }


class Measured(SteeredArtifacts):
    """Artifacts whose figures differ by key, so that a row that reads another artifact is seen."""

    def probes(self, probes: ConceptProbes) -> None:
        super().probes(probes)
        for key in [*probes.measures.values(), *probes.published.values(), *probes.nested.values()]:
            self.artifacts.delete(key)
            nested = key in probes.nested.values()
            names = ("d1.auroc_nested",) if nested else ("d1.auroc", "d1.auroc_test", "d1.selectivity")
            interval = number(key) - 0.1, number(key) + 0.1
            self._measures(key, *(Measure.of(name, number(key), interval, coverage=1.0, n=40) for name in names))
        for key in probes.scores.values():
            self.artifacts.delete(key)
            rows = [{"passage_id": f"p{n}", "split": "train", "fold": n % 2} for n in range(6)]
            figures = [{"label": n % 2, "group": f"g{n}", "score": number(f"{key}{n}")} for n in range(6)]
            self._write(key, [{**row, **found} for row, found in zip(rows, figures, strict=True)], t.PROBE_SCORES)


def number(text: str) -> float:
    """A figure between .5 and 1 that only depends on the text."""
    return 0.5 + int(digest(text, 8), 16) / 2**33


def rising(key: str, opening: int, strength: float, scorer: str) -> float:
    slope = 0.0 if "null" in key else number(f"{key}/{scorer}")
    return min(0.2 + 0.01 * opening + slope * abs(strength), 1.0)


def of_tables(settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Digests of all tables that are assembled from artifacts made by hand."""
    config = configured(settings, folder)
    made = Measured(folder / "store", planned(config))
    if made.plan.steering:
        made.write(rising)
    else:
        for probes in made.plan.probes.concepts.values():
            made.probes(probes)
    tables = assemble(made.plan, made.artifacts, {}, "run-1")
    named = {name: [len(table), table_digest(table)] for name, table in sorted(tables.items()) if len(table)}
    return {"results_digest": results_digest(tables["results"]), **named}


def table_digest(table: pa.Table) -> str:
    """The digest of the rows in their order, floats rounded as in the digest of results, without empty columns."""
    filled = [name for name in table.column_names if table[name].null_count < len(table)]
    names = [name for name in filled if name not in VOLATILE]
    rows = [[rounded(row[name]) for name in names] for row in table.to_pylist()]
    return digest([names, rows], 16)


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{round(value, DIGEST_DECIMALS) + 0.0:.6f}"  # without the sign of zero
    return [rounded(each) for each in value] if isinstance(value, list) else value


WAYS: dict[str, tuple[Callable[[dict[str, Any], Path], dict[str, Any]], dict[str, dict[str, Any]]]] = {
    "configs": (of_config, CONFIGS),
    "plans": (of_plan, PLANS),
    "tables": (of_tables, TABLES),
}


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, (_, runs) in WAYS.items() for name in runs])
def test_nothing_moved(way: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CONCEPTS, "find", CONCEPTS.find)  # the planted suite attaches its store
    make, runs = WAYS[way]
    assert make(runs[name], tmp_path) == json.loads(GOLDEN.read_text("utf-8"))[way][name]


if __name__ == "__main__":
    found: dict[str, dict[str, Any]] = {}
    for way, (make, runs) in WAYS.items():
        for name, settings in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(way, {})[name] = make(settings, Path(folder))
    GOLDEN.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    sys.stdout.write(GOLDEN.read_text("utf-8"))
