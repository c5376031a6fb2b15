"""The probe of a run that is served, beside the prober's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver.tests.run_folders import assembled

from poolbench.contracts import tables as t
from poolbench.errors import NotFoundError
from poolbench.steps.roles import Cell, SplitCell
from poolbench_driver.vectors.probes import probe_of_run
from poolbench_prober.solver.fits import fit_probes


def test_the_probe_of_a_run_gives_the_log_odds_of_the_prober(steered: Any, tmp_path: Path) -> None:
    made, cell, random = steered(), Cell("A1_mean", 4), np.random.default_rng(3)
    of_concept = made.plan.vectors.concepts["contrast"]
    labels = np.arange(40) % 2
    matrix = (random.normal(size=(40, 4)) + labels[:, None] * [1.0, 0.5, 0.0, -1.0] + 5.0).astype(np.float32)
    fit = fit_probes(matrix, labels[:, None], np.ones(1))
    weights, ids = fit.weights_DK[:, 0], [f"p{number}" for number in range(40)]
    norm = float(np.linalg.norm(weights))
    rows = [{"direction_id": name, "vector": (weights / norm).tolist(), "raw_norm": norm} for name in ("C1", "C3")]
    made.artifacts.write_table(
        made.plan.probes.concepts["contrast"].directions[cell], t.table_from_rows(rows, t.directions_schema(4))
    )
    passages = [{"passage_id": name, "label": label} for name, label in zip(ids, labels.tolist(), strict=True)]
    made.artifacts.write_table(of_concept.passages["train"], t.table_from_rows(passages, t.PASSAGES))
    pooled = [{"passage_id": name, "vector": row} for name, row in zip(ids[::-1], matrix[::-1].tolist(), strict=True)]
    pooled.append({"passage_id": "lost", "vector": None})
    key = of_concept.vectors[SplitCell("train", *cell)]
    made.artifacts.write_table(key, t.table_from_rows(pooled, t.vectors_schema(4)))
    made.write(lambda *_: 0.5)
    folder = assembled(made, tmp_path / "runs")
    body = probe_of_run(folder, made.plan, made.artifacts, "contrast", "A1_mean", 4)
    np.testing.assert_allclose(matrix @ np.array(body["weights"]) + body["offset"], fit.scores(matrix)[:, 0], atol=1e-4)
    assert (body["strategy"], body["layer"], body["run"], body["model"]) == ("A1_mean", 4, folder.id, "demo")
    with pytest.raises(NotFoundError, match="has no probe: the run did not make it"):
        probe_of_run(folder, made.plan, made.artifacts, "contrast", "A1_mean", 2)
    with pytest.raises(NotFoundError, match="it has A1_mean at layer"):
        probe_of_run(folder, made.plan, made.artifacts, "contrast", "A2_max", None)
