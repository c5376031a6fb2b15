"""Online code lengths of real values: bins by hand, masses against scipy, nothing to learn costs nothing."""

import numpy as np
import pytest
from scipy.stats import norm

from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, TaskProbes, task_measures
from poolbench_prober.probing.value_code import Bins, value_code_lengths, with_share

CHOICES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def lengths(vectors, values, seed=0, groups=None):
    groups = np.arange(len(values)) if groups is None else groups
    return value_code_lengths(vectors, values, groups, c_values=CHOICES, plain_c=1.0, tolerance=1e-5, seed=seed)


def linear(noise, count=1000, width=64, seed=5):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, width))
    return vectors, vectors @ rng.normal(size=width) / np.sqrt(width) + noise * rng.normal(size=count)


def test_bins_have_equal_mass_and_few_values_a_bin_each():
    values = np.random.default_rng(0).normal(size=1600)
    bins = Bins.of(values)
    np.testing.assert_array_equal(np.bincount(bins.codes(values)), [100] * 16)
    few = Bins.of(np.array([3.0, 1.0, 1.0, 7.0, 1.0]))
    np.testing.assert_array_equal(few.edges, [2.0, 5.0])
    np.testing.assert_array_equal(few.codes(np.array([1.0, 3.0, 7.0, -9.0, 99.0])), [0, 1, 2, 0, 2])


def test_ties_are_never_parted_and_make_fewer_bins():
    values = np.r_[np.zeros(700), np.arange(1, 301)]  # 70 % of the mass in one value
    bins = Bins.of(values)
    codes = bins.codes(values)
    assert set(codes[:700]) == {0}
    # Quantiles 11/16 and beyond lie among the others: 5 edges, the first just above the tie.
    assert bins.count == 6
    assert bins.edges[0] == 0.5
    np.testing.assert_array_equal(np.bincount(codes)[1:], [50, 62, 63, 62, 63])


def test_masses_are_those_of_a_gaussian_in_both_tails():
    bins = Bins(np.array([-1.0, 0.5, 2.0, 9.0]))
    means, deviations = np.array([-3.0, 0.4, 30.0]), np.array([1.0, 2.0, 1.0])
    found = bins.masses(means, deviations)
    edges = np.r_[-np.inf, bins.edges, np.inf]
    for row, (mean, deviation) in enumerate(zip(means, deviations, strict=True)):
        np.testing.assert_allclose(found[row], np.diff(norm.cdf(edges, mean, deviation)), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    high = bins.masses(np.array([-3.0]), 1.0)[0, 4]  # 12 standard deviations: a difference of ones would be 0
    assert high == pytest.approx(norm.sf(12), rel=1e-9)


def test_an_outlier_costs_what_the_constant_predictor_leaves_it():
    constant = np.full(4, -np.log(4))
    log_p = with_share(np.array([[1.0, 0.0, 0.0, 0.0]]), constant, 99)
    np.testing.assert_allclose(np.exp(log_p[0]), [0.99 + 0.0025, 0.0025, 0.0025, 0.0025])


@pytest.mark.parametrize(("width", "unregularised"), [(64, 0.95), (256, 0.88), (768, 0.80)])
def test_random_values_are_not_compressed_at_any_width(width, unregularised):
    rng = np.random.default_rng(width)
    for seed in range(2):
        found = lengths(rng.normal(size=(1400, width)), rng.normal(size=1400), seed)
        assert 0.98 <= found.compression <= 1.02
        assert found.unregularised == pytest.approx(unregularised, abs=0.03)
        assert (found.num_classes, found.uniform_bits) == (16, 5600)


def test_values_of_documents_are_not_learned_from_the_rest_of_the_document():
    """Vectors tell documents apart, and values are those of documents: split ones seem to be predicted."""
    rng = np.random.default_rng(0)
    documents = np.arange(1200) // 40
    vectors = 3 * rng.normal(size=(30, 16))[documents] + 0.1 * rng.normal(size=(1200, 16))
    values = rng.normal(size=30)[documents] + 0.1 * rng.normal(size=1200)
    whole, split = lengths(vectors, values, groups=documents), lengths(vectors, values)
    assert whole.compression < 1.02 < split.compression


@pytest.mark.parametrize("draw", ["lognormal", "standard_cauchy"])
def test_random_values_with_heavy_tails_are_not_compressed(draw):
    rng = np.random.default_rng(1)
    assert 0.98 <= lengths(rng.normal(size=(1000, 64)), getattr(rng, draw)(size=1000)).compression <= 1.02


def test_the_stronger_the_signal_the_shorter_the_code():
    found = [lengths(*linear(noise)).compression for noise in (0.03, 0.1, 0.5, 2.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 4
    # A Gaussian of 1/10 of the spread leaves log2(10) = 3.3 of 4 bits to be saved; learning has its price.
    assert 2 < found[1] < 4 / (4 - np.log2(10))


def test_discrete_values_compress_by_their_frequencies_and_by_the_vectors():
    """A sentence length or tree depth: unequal bins. Without signal only the frequencies save, up to log2 K over H."""
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(1500, 32))
    depths = rng.geometric(0.5, 1500).clip(max=6).astype(float)
    found = lengths(vectors, depths)
    share = np.bincount(depths.astype(int))[1:] / 1500
    bound = np.log2(6) / -(share * np.log2(share)).sum()
    assert found.num_classes == 6
    assert 0.95 * bound < found.compression <= bound
    assert found.floor == pytest.approx(bound)
    told = np.clip(np.round(4 + 2 * vectors[:, 0]), 1, 9)
    assert lengths(vectors, told).compression > 2


def test_scale_and_offset_of_the_values_do_not_matter():
    vectors, values = linear(0.3, count=400)
    found, moved = lengths(vectors, values), lengths(vectors, 1e6 + 1e-3 * values)
    assert moved.compression == pytest.approx(found.compression, rel=1e-4)
    assert moved.c_of_blocks == found.c_of_blocks


def test_values_that_vectors_give_exactly_cost_finitely_many_bits():
    vectors, values = linear(0.0, count=300, width=4)
    found = lengths(vectors, values)
    assert np.isfinite([found.online_bits, found.plain_bits]).all()
    assert found.compression > 5


def test_a_regression_has_the_figures_and_no_published_one():
    vectors, values = linear(0.2, count=300, width=8)
    targets = Targets(tuple(map(str, range(300))), (), values, np.arange(300))
    params = TaskParams(num_bootstrap=10, seeds=(0, 1))
    probes = TaskProbes.of(targets, PooledVectors.from_matrix(vectors), params)
    rows = {m.metric: m for m in task_measures(probes)}
    assert rows["probe.compression"].value > 1.5
    assert rows["probe.compression"].n == 210
    assert rows["probe.uniform_bits"].value == pytest.approx(4 * 210)
    assert rows["probe.uniform_bits"].details["num_classes"] == [16, 16]
    assert rows["probe.online_bits"].value < rows["probe.uniform_bits"].value
    assert rows["probe.compression_published"].status == "not_implemented"
    assert "real values" in rows["probe.compression_published"].reason
    assert {m.status for m in rows.values()} == {"ok", "not_implemented"}
