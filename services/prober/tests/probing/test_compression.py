"""Online code lengths of classes and of real values: hand computations, and what the released formula gives."""

import numpy as np
import pytest
from scipy.stats import norm

from poolbench.errors import CellError
from poolbench.steps.prober import TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing import Targets, TaskProbes, task_measures
from poolbench_prober.probing.codes import code_lengths
from poolbench_prober.probing.compression import BLOCKS, block_ends, constant_predictor, dealt_folds, laplace, send
from poolbench_prober.probing.value_code import Bins, value_code_lengths, with_share

CHOICES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)


def lengths(vectors, codes, num_classes=2, seed=0, groups=None):
    groups = np.arange(len(codes)) if groups is None else groups
    settings = {"c_values": CHOICES, "plain_c": 1.0, "tolerance": 1e-5, "seed": seed}
    return code_lengths(vectors, codes, num_classes, groups, **settings)


def random_labels(count, width, seed, num_classes=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)), rng.integers(0, num_classes, count)


@pytest.mark.parametrize(
    ("count", "width", "num_classes"),
    [
        pytest.param(1400, 64, 2, marks=pytest.mark.lane(name="simulations")),
        (1400, 256, 2),
        pytest.param(1400, 768, 2, marks=pytest.mark.lane(name="simulations")),
        (1000, 32, 4),
        pytest.param(1000, 32, 50, marks=pytest.mark.lane(name="simulations")),
    ],
)
def test_random_labels_are_not_compressed(count, width, num_classes):
    """Learning fifty equal frequencies costs a fortieth of all bits; stratified inner folds flatter who learns them."""
    values = [
        lengths(*random_labels(count, width, seed, num_classes), num_classes, seed).compression for seed in range(2)
    ]
    assert all(0.98 <= value <= 1.02 for value in values), values


def constant(counts, groups=None):
    codes = np.repeat(np.arange(len(counts)), counts)
    return constant_predictor(codes, len(counts), np.arange(len(codes)) if groups is None else groups)


def test_frequencies_are_used_where_documents_show_more_than_their_standard_error():
    uniform = np.full(4, -np.log(4))
    np.testing.assert_allclose(constant([0, 0, 0, 0]), uniform)
    np.testing.assert_allclose(constant([26, 24, 25, 25]), uniform)
    skewed = [90, 5, 3, 2]
    np.testing.assert_allclose(constant(skewed), np.log([91 / 104, 6 / 104, 4 / 104, 3 / 104]))
    np.testing.assert_allclose(np.exp(laplace(np.array(skewed), 100)).sum(), 1)
    # Of 70 and 30 labels in ten documents of one label each, seven against three are nothing unusual.
    np.testing.assert_allclose(constant([70, 30]), np.log([71 / 102, 31 / 102]))
    np.testing.assert_allclose(constant([70, 30], np.arange(100) // 10), np.log([0.5, 0.5]))
    # Nine documents against one: (90 + 10) / (100 + 2 * 10), as of nine labels against one.
    nine = np.log([100 / 120, 20 / 120])
    np.testing.assert_allclose(constant([90, 10], np.arange(100) // 10), nine)
    np.testing.assert_allclose(laplace(np.array([9, 1]), 10), nine)


@pytest.mark.parametrize(("count", "width", "expected"), [(2000, 64, 0.80), (1400, 768, 0.32)])
def test_an_unregularised_probe_pays_for_its_width(count, width, expected):
    assert lengths(*random_labels(count, width, 1), seed=1).unregularised == pytest.approx(expected, abs=0.03)


def test_released_formula_is_bits_over_nats_of_a_double_softmax():
    """With the uniform predictor each label costs ln 2 nats; a certain one -ln(e / (e + 1)), never less."""
    vectors, codes = random_labels(400, 3, 0)
    settings = {"c_values": (), "plain_c": 1e-9, "tolerance": 1e-5, "seed": 0}
    at_chance = code_lengths(vectors * 0, codes, 2, np.arange(400), **settings)
    assert at_chance.released == pytest.approx(1 / np.log(2), abs=0.01)
    certain = lengths(np.repeat(10.0 * (2 * codes[:, None] - 1), 50, axis=1), codes)
    assert 3.0 < certain.released < 1 / np.log(1 + np.exp(-1)) == pytest.approx(3.192, abs=1e-3)


def test_labels_that_vectors_predict_are_compressed_and_mixed_ones_less():
    vectors, codes = random_labels(1000, 20, 2)
    vectors[:, 0] += 6 * codes
    clear = lengths(vectors, codes)
    noisy = np.where(np.random.default_rng(0).random(1000) < 0.2, 1 - codes, codes)
    assert clear.compression > 5
    # A fifth of the labels flipped: at most 1 / H(.2) = 1.385.
    assert 1.1 < lengths(vectors, noisy).compression < 1.4
    assert clear.uniform_bits == pytest.approx(1000)


def test_a_skewed_majority_is_compressed_to_its_entropy_and_no_further():
    rng = np.random.default_rng(3)
    codes = (rng.random(2000) < 0.1).astype(int)
    found = lengths(rng.normal(size=(2000, 64)), codes)
    entropy = -(codes.mean() * np.log2(codes.mean()) + (1 - codes.mean()) * np.log2(1 - codes.mean()))
    assert found.compression == pytest.approx(1 / entropy, rel=0.05)
    assert found.floor == pytest.approx(1 / entropy)
    # 5 % positives: 1 / H(.05) = 1 / .2864 = 3.49; a class that no instance has counts among the K of both.
    vectors, _ = random_labels(200, 4, 0)
    assert lengths(vectors, np.repeat([0, 1], [190, 10])).floor == pytest.approx(3.4916, abs=1e-4)
    assert lengths(vectors, np.repeat([0, 1], 100), num_classes=4).floor == pytest.approx(2)
    assert lengths(vectors, np.repeat([0, 1], 100)).floor == pytest.approx(1)


def test_a_class_that_appears_late_costs_finitely_many_bits():
    vectors, codes = random_labels(500, 8, 4)
    codes[-3:] = 2
    found = lengths(vectors, codes, num_classes=3)
    assert np.isfinite([found.online_bits, found.plain_bits, found.released_nats]).all()


def test_blocks_end_where_voita_and_titov_end_them_after_whole_groups():
    single = np.ones(10_000, dtype=int)
    assert block_ends(single) == [10, 20, 40, 80, 160, 320, 625, 1250, 2500, 5000, 10_000]
    assert len(BLOCKS) == 11
    assert block_ends(single[:20])[-1] == 20
    assert len(set(block_ends(single[:20]))) == len(block_ends(single[:20]))
    assert block_ends(np.full(50, 2)) == [2, 4, 6, 12, 26, 50, 100]
    assert block_ends(np.array([30, 1, 60, 9])) == [30, 91, 100]


def test_inner_folds_deal_classes_out_evenly_and_keep_groups_whole():
    codes = np.repeat([0, 1, 2], [10, 5, 1])
    folds = dealt_folds(codes, np.arange(16), 0)
    assert np.bincount(folds[codes == 0]).tolist() == [2] * 5
    assert np.bincount(folds[codes == 1]).tolist() == [1] * 5
    assert dealt_folds(np.array([0, 0, 0, 1]), np.arange(4), 0) is None
    pairs = np.arange(40) // 2
    folds = dealt_folds(np.tile([0, 1], 20), pairs, 0)
    assert (folds[::2] == folds[1::2]).all() and np.bincount(folds).tolist() == [8] * 5
    # Ten documents of one class, ten of the other, three instances each.
    codes, documents = np.repeat([0, 1], 30), np.arange(60) // 3
    folds = dealt_folds(codes, documents, 0)
    assert all(len(set(folds[documents == each])) == 1 for each in range(20))
    assert np.bincount(folds[codes == 0]).tolist() == np.bincount(folds[codes == 1]).tolist() == [6] * 5
    assert dealt_folds(np.array([0, 1, 0]), np.array([0, 0, 1]), 0) is None  # class 1 is in one group


def twins(noise, seed=0, num_pairs=400, width=64):
    """Sentences that share all but their label, which both twins show, and the noise of each."""
    rng = np.random.default_rng(seed)
    vectors = np.repeat(rng.normal(size=(num_pairs, width)), 2, axis=0)
    vectors += noise * rng.normal(size=vectors.shape)
    codes = np.tile([0, 1], num_pairs)
    vectors[:, 0] += 2 * codes - 1
    return vectors, codes, np.arange(2 * num_pairs) // 2


def test_twins_are_sent_together():
    """Where twins are split, the probe expects the label of the twin that was sent."""
    vectors, codes, pairs = twins(0.3)
    whole, split = lengths(vectors, codes, groups=pairs), lengths(vectors, codes)
    assert whole.compression > split.compression + 0.1 > 1.1
    assert whole.floor == split.floor == 1
    vectors, codes, pairs = twins(0.3)
    vectors[:, 0] = 0
    assert 0.98 <= lengths(vectors, codes, groups=pairs).compression <= 1.02


@pytest.mark.lane(name="simulations")
def test_random_labels_of_whole_documents_are_not_compressed():
    """Vectors tell documents apart, and each has one label: with split documents, they seem to tell the labels."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        documents = np.arange(1500) // 10
        vectors = rng.normal(size=(150, 32))[documents] + 0.5 * rng.normal(size=(1500, 32))
        codes = rng.integers(0, 2, 150)[documents]
        assert (
            lengths(vectors, codes, seed=seed, groups=documents).compression
            < 1.02
            < lengths(vectors, codes, seed=seed).compression
        )


class Noted:
    """A sender that keeps what was sent before each block, and predicts nothing."""

    def __init__(self):
        self.sent = []

    def __call__(self, rows):
        self.sent.append(rows)
        return self

    def choose(self, c_values):
        return None

    def converged(self, c):
        return True

    def log_probabilities(self, block_mD, c):
        return np.log(np.full((len(block_mD), 2), 0.5))


def test_every_block_begins_after_whole_groups():
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(40), np.arange(1, 41)))
    vectors, codes = random_labels(len(groups), 3, 0)
    noted = Noted()
    found = send(vectors, codes, 2, groups, noted, c_values=CHOICES, plain_c=1.0, seed=0, released=False)
    assert found.compression == pytest.approx(1)
    assert len(noted.sent) > 4
    for rows in noted.sent:
        assert not set(groups[rows]) & set(np.delete(groups, rows))


def test_too_few_groups_have_no_code_length():
    vectors, codes = random_labels(40, 3, 0)
    with pytest.raises(CellError, match="4 groups of training instances") as error:
        lengths(vectors, codes, groups=np.arange(40) // 10)
    assert error.value.status == "too_few"


class LostProbe(Noted):
    """Chooses a C whose probe of all labels sent has not converged: the constant predictor sends the block."""

    def choose(self, c_values):
        return c_values[0]

    def converged(self, c):
        return False


def test_a_choice_that_did_not_converge_is_reported_as_the_constant_predictor():
    vectors, codes = random_labels(200, 3, 0)
    settings = {"c_values": CHOICES, "plain_c": 1.0, "seed": 0, "released": True}
    found = send(vectors, codes, 2, np.arange(200), LostProbe(), **settings)
    assert set(found.c_of_blocks) == {None} and found.num_replaced == len(found.c_of_blocks)
    assert found.compression == pytest.approx(1)


def value_lengths(vectors, values, seed=0, groups=None):
    groups = np.arange(len(values)) if groups is None else groups
    return value_code_lengths(vectors, values, groups, c_values=CHOICES, plain_c=1.0, tolerance=1e-5, seed=seed)


def linear(noise, count=1000, width=64, seed=5):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, width))
    return vectors, vectors @ rng.normal(size=width) / np.sqrt(width) + noise * rng.normal(size=count)


def test_bins_have_equal_mass_and_never_part_ties():
    values = np.random.default_rng(0).normal(size=1600)
    bins = Bins.of(values)
    np.testing.assert_array_equal(np.bincount(bins.codes(values)), [100] * 16)
    few = Bins.of(np.array([3.0, 1.0, 1.0, 7.0, 1.0]))
    np.testing.assert_array_equal(few.edges, [2.0, 5.0])
    np.testing.assert_array_equal(few.codes(np.array([1.0, 3.0, 7.0, -9.0, 99.0])), [0, 1, 2, 0, 2])
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


@pytest.mark.parametrize(
    ("width", "unregularised"),
    [(64, 0.95), (256, 0.88), pytest.param(768, 0.80, marks=pytest.mark.lane(name="simulations"))],
)
def test_random_values_are_not_compressed_at_any_width(width, unregularised):
    rng = np.random.default_rng(width)
    for seed in range(2):
        found = value_lengths(rng.normal(size=(1400, width)), rng.normal(size=1400), seed)
        assert 0.98 <= found.compression <= 1.02
        assert found.unregularised == pytest.approx(unregularised, abs=0.03)
        assert (found.num_classes, found.uniform_bits) == (16, 5600)


def test_values_of_documents_are_not_learned_from_the_rest_of_the_document():
    """Vectors tell documents apart, and values are those of documents: split ones seem to be predicted."""
    rng = np.random.default_rng(0)
    documents = np.arange(1200) // 40
    vectors = 3 * rng.normal(size=(30, 16))[documents] + 0.1 * rng.normal(size=(1200, 16))
    values = rng.normal(size=30)[documents] + 0.1 * rng.normal(size=1200)
    whole, split = value_lengths(vectors, values, groups=documents), value_lengths(vectors, values)
    assert whole.compression < 1.02 < split.compression


@pytest.mark.parametrize("draw", ["lognormal", "standard_cauchy"])
def test_random_values_with_heavy_tails_are_not_compressed(draw):
    rng = np.random.default_rng(1)
    assert 0.98 <= value_lengths(rng.normal(size=(1000, 64)), getattr(rng, draw)(size=1000)).compression <= 1.02


def test_the_stronger_the_signal_the_shorter_the_code():
    found = [value_lengths(*linear(noise)).compression for noise in (0.03, 0.1, 1.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 4
    # A Gaussian of 1/10 of the spread leaves log2(10) = 3.3 of 4 bits to be saved; learning has its price.
    assert 2 < found[1] < 4 / (4 - np.log2(10))


def test_discrete_values_compress_by_their_frequencies_and_by_the_vectors():
    """A sentence length or tree depth: unequal bins. Without signal only the frequencies save, up to log2 K over H."""
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(1500, 32))
    depths = rng.geometric(0.5, 1500).clip(max=6).astype(float)
    found = value_lengths(vectors, depths)
    share = np.bincount(depths.astype(int))[1:] / 1500
    bound = np.log2(6) / -(share * np.log2(share)).sum()
    assert found.num_classes == 6
    assert 0.95 * bound < found.compression <= bound
    assert found.floor == pytest.approx(bound)
    told = np.clip(np.round(4 + 2 * vectors[:, 0]), 1, 9)
    assert value_lengths(vectors, told).compression > 2


def test_scale_and_offset_of_values_do_not_matter_nor_exact_ones():
    vectors, values = linear(0.3, count=400)
    found, moved = value_lengths(vectors, values), value_lengths(vectors, 1e6 + 1e-3 * values)
    assert moved.compression == pytest.approx(found.compression, rel=1e-4)
    assert moved.c_of_blocks == found.c_of_blocks
    vectors, values = linear(0.0, count=300, width=4)
    found = value_lengths(vectors, values)
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
