"""How far a linear probe suffices: a planted signal that is linear, and one that only a hidden layer finds."""

import numpy as np
import pytest
from services.prober.tests.conftest import by_metric, passages_table, planted_vectors

from poolbench.steps.prober import DIRECTIONS, MEASURES, PASSAGES, PROBE, SCORES, VECTORS, ProbeParams
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors


def measures(vectors_nD: np.ndarray, passages: Passages, hidden: int | None = 16) -> dict[str, object]:
    params = ProbeParams(num_bootstrap=200, num_permutations=1, num_control_words=1, sensitivity_c=(), hidden=hidden)
    design = Design.build(passages, None, params)
    return by_metric(probe_cell(design, PooledVectors.from_matrix(vectors_nD), None, params))


@pytest.fixture(scope="module")
def unpaired() -> Passages:
    return Passages.from_table(passages_table(num_pairs=300, paired=False))


def test_a_hidden_layer_finds_what_no_line_separates(unpaired: Passages) -> None:
    rng = np.random.default_rng(1)
    corners = rng.choice([-1.0, 1.0], size=len(unpaired.ids))
    vectors = rng.normal(size=(len(unpaired.ids), 6)) * 0.3
    vectors[:, 0] += corners  # exclusive or: the label is whether the first two coordinates have one sign
    vectors[:, 1] += corners * np.where(unpaired.labels == 1, 1, -1)
    found = measures(vectors, unpaired)
    assert abs(found["d1.auroc"].value - 0.5) < 0.1 and found["d1.auroc_mlp"].value > 0.95
    gain = found["d1.mlp_gain"]
    assert gain.value == pytest.approx(found["d1.auroc_mlp"].value - found["d1.auroc"].value)
    assert 0.3 < gain.ci_low <= gain.value <= gain.ci_high and gain.params == {"hidden": 16}


def test_it_adds_little_to_a_linear_signal_and_nothing_without_the_option(unpaired: Passages) -> None:
    found = measures(planted_vectors(unpaired, 2.0), unpaired)
    assert found["d1.auroc"].value > 0.8 and abs(found["d1.mlp_gain"].value) < 0.05
    constant = np.ones((len(unpaired.ids), 4))
    assert "d1.mlp_gain" not in measures(constant, unpaired, hidden=None)
    found = measures(constant, unpaired)
    assert {found[name].status for name in ("d1.auroc", "d1.auroc_mlp", "d1.mlp_gain")} == {"collapsed"}


def test_only_the_measures_of_a_probe_depend_on_it() -> None:
    inputs = {role: str(role) for role in (PASSAGES("train"), VECTORS("train", "A1_mean", 3))}
    keys = [
        {role: PROBE.key(role("A1_mean", 3), params, inputs) for role in (MEASURES, DIRECTIONS, SCORES)}
        for params in (ProbeParams(concept="c"), ProbeParams(concept="c", hidden=8))
    ]
    assert [keys[0][role] == keys[1][role] for role in keys[0]] == [False, True, True]
