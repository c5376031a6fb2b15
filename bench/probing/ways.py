"""Probing sets from texts to test scores, in a process of its own: our way, and that of the released code of Holmes.

    python bench/probing/ways.py ours|theirs FOLDER_OF_A_MODEL MAX_INSTANCES SET...

Both split the sets in the same way, read the states after the last norm, and average the tokens of a text or span. It
prints JSON: scores by set, texts that were run, distinct texts.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from poolbench.steps.prober import TaskParams
from poolbench_corpora.probing import ProbingData, ProbingSets, shared_passages
from poolbench_driver.suites.holmes.config import HolmesConfig
from poolbench_driver.suites.holmes.plan import thinned
from poolbench_prober.probing.models import Problem, score
from poolbench_prober.probing.targets import Targets

_BATCH = 10


def main() -> None:
    """Measure one way."""
    way, model, most, *names = sys.argv[1:]
    torch.set_num_threads(1)
    scores = {"ours": ours, "theirs": theirs}[way](model, read_sets(names, int(most)))
    print(json.dumps(scores))


def read_sets(names: Sequence[str], most: int) -> dict[str, ProbingData]:
    """Return sets with splits, and about `most` instances each."""
    catalogue = ProbingSets()
    data, _ = catalogue.read_all(catalogue.choose(names), 0)
    sets = {}
    for name, set_data in data.items():
        share = min(1.0, most / set_data.instances.num_rows)
        config = HolmesConfig(flash=share, flash_eval=max(10, round(0.3 * most)))
        sets[name] = thinned(set_data, config)
    return sets


def ours(model: str, data: dict[str, ProbingData]) -> dict[str, Any]:
    """Read every distinct text once, and fit converged probes that choose among four C on dev."""
    from poolbench.config import resolve_model
    from poolbench.contracts.tables import vector_matrix
    from poolbench.pooling.batch import Request
    from poolbench.settings import ExtractorSettings
    from poolbench_extractor.core import extract
    from poolbench_extractor.encode import PassageTexts
    from poolbench_extractor.forward import capture as forward
    from poolbench_extractor.models.load import load_decoder
    from poolbench_prober.probing import models

    decoder = load_decoder(resolve_model(model), ExtractorSettings(device="cpu"))
    passages = shared_passages(data.values())
    ids, texts = passages["passage_id"].to_pylist(), passages["text"].to_pylist()
    spans = [(span["start"], span["end"]) for span in passages["span"].to_pylist()]
    read = {decoder.num_blocks: [Request.of("A1_mean")]}
    with patch.object(forward, "_padded", wraps=forward._padded) as padded:
        (table,) = extract(decoder, PassageTexts(ids, texts, spans=spans), read).values()
    num_run = sum(len(call.args[1]) for call in padded.call_args_list)
    vectors = dict(zip(ids, vector_matrix(table["vector"]), strict=True))
    scores = {}
    for name, set_data in data.items():
        drawn = problem_of(set_data, vectors, TaskParams())
        scores[name] = test_score(drawn, models.fit_converged(drawn, drawn.params.c_values).predicted)
    return {"scores": scores, "num_run": num_run, "num_distinct": len(set(texts))}


def theirs(model: str, data: dict[str, ProbingData]) -> dict[str, Any]:
    """Read each set with a model of its own, ten texts at a time, keep all layers, and train five probes by Adam."""
    from transformers import AutoModel, AutoTokenizer

    from probing import adam

    scores, num_run = {}, 0
    for name, set_data in data.items():
        decoder = AutoModel.from_pretrained(model, dtype=torch.float32).eval()
        tokenizer = AutoTokenizer.from_pretrained(model)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        passages = set_data.passages.to_pylist()
        vectors: dict[str, list[np.ndarray]] = {}
        for first in range(0, len(passages), _BATCH):
            rows = passages[first : first + _BATCH]
            num_run += len(rows)
            batch = tokenizer(
                [row["text"] for row in rows], return_tensors="pt", padding=True, return_offsets_mapping=True
            )
            offsets = batch.pop("offset_mapping")
            with torch.no_grad():
                states = decoder(**batch, output_hidden_states=True).hidden_states
            for place, row in enumerate(rows):
                start, end = row["span"]["start"], row["span"]["end"]
                inside = (
                    (offsets[place, :, 0] < end)
                    & (offsets[place, :, 1] > start)
                    & batch["attention_mask"][place].bool()
                )
                vectors[row["passage_id"]] = [layer[place, inside].mean(dim=0).numpy() for layer in states]
        drawn = problem_of(
            set_data, {name: layers[-1] for name, layers in vectors.items()}, TaskParams(protocol="released")
        )
        scores[name] = fmean(test_score(drawn, adam.fit(drawn._replace(seed=seed))) for seed in range(5))
    return {"scores": scores, "num_run": num_run}


def problem_of(data: ProbingData, vectors: dict[str, np.ndarray], params: TaskParams) -> Problem:
    """Return a set on vectors of its passages."""
    rows = data.instances.to_pylist()
    targets = Targets.from_table(data.instances)
    sides = ("first", "second") if rows[0]["second"] else ("first",)
    matrix = np.stack(
        [np.concatenate([np.mean([vectors[name] for name in row[side]], axis=0) for side in sides]) for row in rows]
    )
    return Problem(matrix.astype(np.float64), targets.values, targets.split(0), len(targets.classes), params, 0)


def test_score(problem: Problem, predicted: np.ndarray) -> float:
    """Return the score on the test split."""
    test = problem.rows["test"]
    ones = np.ones((1, len(test)))
    return float(score(problem.is_regression, problem.values[test], predicted[test], ones)[0])


if __name__ == "__main__":
    main()
