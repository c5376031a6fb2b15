"""Sparse probes: hand computations, D1 of the same numbers, and every typed null."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.sparse import csr_matrix
from services.prober.tests.conftest import passages_table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from poolbench.contracts.tables import FEATURES, features_schema, table_from_rows
from poolbench.errors import InputError
from poolbench.steps.prober import SPARSE, ProbeParams, SparseParams
from poolbench.storage import Artifacts, open_store
from poolbench.worker.taskio import TaskIO
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.service import ProberService
from poolbench_prober.sparse import SPARSE_METRICS, sparse_measures, strongest

NUM_FEATURES = 40


def features_table(passages, means_nF, failed=(), autoencoder="sae"):
    """FEATURES of passages with dense means; the passages in `failed` have none."""
    rows = []
    for row, (passage, means) in enumerate(zip(passages.ids, means_nF, strict=True)):
        active = np.flatnonzero(means)
        made = {"passage_id": passage, "part": "all", "num_tokens": 9, "features": active, "means": means[active]}
        if row in failed:
            made = {"passage_id": passage, "part": "all", "status": "failed", "reason": f"no tokens in '{passage}'"}
        rows.append(made)
    return table_from_rows(rows, FEATURES).replace_schema_metadata(
        features_schema(means_nF.shape[1], autoencoder).metadata
    )


def planted_features(passages, shift, seed=0, width=NUM_FEATURES):
    """Sparse features; number 7 is larger by `shift` where the concept is."""
    rng = np.random.default_rng(seed)
    means = rng.exponential(size=(len(passages.ids), width)) * (rng.random((len(passages.ids), width)) < 0.4)
    means[:, 7] = rng.exponential(size=len(means)) + shift * passages.labels
    return means.astype(np.float32)


def run(train, test, means, **params):
    chosen = SparseParams(**{"num_bootstrap": 50, "fold_seeds": (1,), **params})
    tables = [features_table(*pair) for pair in zip((train, test), means, strict=True)]
    return by_key(sparse_measures((train, tables[0]), (test, tables[1]), chosen))


def by_key(measures):
    return {(measure.metric, measure.params["k"]): measure for measure in measures}


@pytest.fixture
def means(train, test_split):
    return [planted_features(split, 1.5, seed) for seed, split in enumerate((train, test_split))]


def test_features_are_chosen_by_hand():
    """Class means (2, 1, 3, 1) and (0, 1, 1, 0). Pooled variances, 4 rows less 2: 2, 1, 0 (constant), 1."""
    positive, negative = [[3, 2, 3, 0], [1, 0, 3, 2]], [[1, 1, 1, 0], [-1, 1, 1, 0]]
    labels = np.array([1, 1, 0, 0])
    values = csr_matrix(np.array([*positive, *negative], dtype=np.float32))
    # Distances: 2 / sqrt(2), 0, infinite, 1 / 1.
    assert strongest(values, labels, 4).tolist() == [2, 0, 3, 1]
    assert strongest(values, 1 - labels, 2).tolist() == [2, 0]


def test_neither_scale_nor_constant_features_matter(train, test_split, means):
    scale = np.random.default_rng(5).uniform(0.01, 100, size=NUM_FEATURES).astype(np.float32)
    plain, scaled = (run(train, test_split, each) for each in (means, [each * scale for each in means]))
    for key, measure in plain.items():
        assert scaled[key].value == pytest.approx(measure.value, abs=1e-6)
        assert scaled[key].details.get("features") == measure.details.get("features")
    # Only two features are active at all, and a probe of five reads three that are 0.
    sparse = [np.where(np.isin(np.arange(NUM_FEATURES), [3, 7]), each, 0) for each in means]
    found = run(train, test_split, sparse)
    assert found["sparse.auroc_test", 5].value == pytest.approx(found["sparse.auroc_test", 2].value, abs=1e-6)


def test_all_features_give_the_figures_of_d1(train, test_split, means):
    """A probe that reads all features is the probe of D1 on them, with the same folds and resamples."""
    found = run(train, test_split, means, ks=(NUM_FEATURES,), fold_seeds=(3, 4))
    params = ProbeParams(num_bootstrap=50, fold_seeds=(3, 4))
    vectors = [PooledVectors.from_matrix(each) for each in means]
    result = probe_cell(Design.build(train, test_split, params), *vectors, params)
    d1 = {measure.metric: measure for measure in result.measures if measure.metric != "d1.auroc_seed"}
    for sparse, dense in (
        ("sparse.auroc", "d1.auroc"),
        ("sparse.auroc_test", "d1.auroc_test"),
        ("sparse.seed_spread", "d1.seed_spread"),
    ):
        own = found[sparse, NUM_FEATURES]
        assert own.value == pytest.approx(d1[dense].value, abs=1e-5)
        assert (own.n, own.num_groups) == (d1[dense].n, d1[dense].num_groups)
    assert found["sparse.auroc", NUM_FEATURES].ci_low == pytest.approx(d1["d1.auroc"].ci_low, abs=1e-4)


def test_the_test_split_agrees_with_scikit_learn(train, test_split, means):
    found = run(train, test_split, means)
    for k in (1, 2, 5):
        measure = found["sparse.auroc_test", k]
        chosen = measure.details["features"]
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000))
        scores = probe.fit(means[0][:, chosen], train.labels).decision_function(means[1][:, chosen])
        assert measure.value == pytest.approx(roc_auc_score(test_split.labels, scores), abs=1e-6)
        assert chosen[0] == 7 and len(chosen) == k


def test_a_planted_feature_is_found_and_noise_is_chance_inside_the_folds(train, test_split, means):
    found = run(train, test_split, means)
    # The share of pairs of two exponentials whose difference is above -1.5: 1 - exp(-1.5) / 2.
    assert found["sparse.auroc_test", 1].value == pytest.approx(1 - np.exp(-1.5) / 2, abs=0.08)
    noise = run(train, test_split, [planted_features(split, 0.0, 9) for split in (train, test_split)])
    assert abs(noise["sparse.auroc", 5].value - 0.5) < 0.15
    for measure in found.values():
        assert measure.ci_low is None or measure.ci_low <= measure.value <= measure.ci_high
        assert measure.seed == 0 and measure.coverage == 1
    # Many features without a signal: one that is chosen on all passages would look better than chance.
    wide = [planted_features(split, 0.0, seed, width=3000) for seed, split in enumerate((train, test_split))]
    found = run(train, test_split, wide, ks=(5,))
    assert abs(found["sparse.auroc", 5].value - 0.5) < 0.15


def test_passages_without_features_are_left_out_and_counted_in_each_split(train, test_split, means):
    table = features_table(train, means[0], failed={0, 5})
    test = (test_split, features_table(test_split, means[1]))
    found = by_key(sparse_measures((train, table), test, SparseParams(num_bootstrap=20)))
    measure = found["sparse.auroc", 1]
    assert (measure.n, measure.coverage) == (118, pytest.approx(118 / 120)) and measure.value is not None
    many = features_table(train, means[0], failed=set(range(20)))
    found = by_key(sparse_measures((train, many), test, SparseParams(num_bootstrap=20)))
    assert {measure.status for measure in found.values()} == {"failed"}
    assert "20 of 120 passages have no features" in found["sparse.auroc", 1].reason
    test = (test_split, features_table(test_split, means[1], failed=set(range(20))))
    found = by_key(sparse_measures((train, features_table(train, means[0])), test, SparseParams(num_bootstrap=20)))
    assert found["sparse.auroc_test", 1].status == "failed" and found["sparse.auroc", 1].value is not None


def test_what_cannot_be_probed_is_null_with_the_reason(train, test_split, means):
    dead = run(train, test_split, [0 * each for each in means])
    assert {(metric, k) for metric, k in dead} == {(metric, k) for metric in SPARSE_METRICS for k in (1, 2, 5)}
    assert {measure.status for measure in dead.values()} == {"collapsed"}
    narrow = run(train, test_split, [each[:, 6:9] for each in means])
    assert narrow["sparse.auroc", 2].value is not None
    assert narrow["sparse.auroc", 5].status == "too_few" and "has 3 features" in narrow["sparse.auroc", 5].reason
    few = run(train.take(np.arange(8)), test_split, [means[0][:8], means[1]])
    assert {measure.status for measure in few.values()} == {"too_few"}
    assert run(train, test_split, means, fold_seeds=())["sparse.seed_spread", 1].status == "too_few"


def test_a_table_that_lacks_a_passage_is_refused(train, test_split, means):
    table = features_table(train, means[0]).slice(0, 100)
    with pytest.raises(InputError, match="lack 20 of 120"):
        sparse_measures((train, table), (test_split, features_table(test_split, means[1])), SparseParams())


def stored(tmp_path, splits, means):
    store = Artifacts(open_store(str(tmp_path)))
    tables = {"train": passages_table(), "test": passages_table(30, "test", seed=1)}  # those of the fixtures
    for (split, table), passages, values in zip(tables.items(), splits, means, strict=True):
        store.write_table(f"passages.{split}", table)
        for name in ("wide", "narrow"):
            features = features_table(passages, values if name == "wide" else values[:, :10], autoencoder=name)
            store.write_table(f"{name}.{split}", features)
    inputs = {f"passages/{split}": f"passages.{split}" for split in ("train", "test")}
    for name in ("wide", "narrow"):
        inputs |= {f"features/{name}/{split}": f"{name}.{split}" for split in ("train", "test")}
    return store, inputs


def test_the_service_writes_what_is_missing_of_each_autoencoder(tmp_path, train, test_split, means):
    store, inputs = stored(tmp_path, (train, test_split), means)
    params = SparseParams(concept="causation", num_bootstrap=20, fold_seeds=(1,))
    task = SPARSE.task(params, inputs, ["measures/wide", "measures/narrow"])
    service = ProberService()
    io = TaskIO(task, store)
    service.handlers[task.kind](task, io)
    expected = run(train, test_split, means, num_bootstrap=20)
    rows = store.read_table(task.outputs["measures/wide"]).to_pylist()
    assert [row["value"] for row in rows] == [measure.value for measure in expected.values()]
    assert isinstance(store.read_table(task.outputs["measures/narrow"]), pa.Table)


def test_keys_are_of_the_autoencoder_and_what_is_read(tmp_path, train, test_split, means):
    _, inputs = stored(tmp_path, (train, test_split), means)

    def key(other=None, name="wide", **params):
        return SPARSE.task(SparseParams(**params), other or inputs, [f"measures/{name}"]).outputs[f"measures/{name}"]

    renamed = {role.replace("/wide/", "/x/"): value for role, value in inputs.items()}
    assert key() == key(concept="hedging") == key(renamed, "x") == key({**inputs, "features/narrow/test": "y"})
    others = [key(ks=(1,)), key(seed=1, fold_seeds=(2,)), key(num_bootstrap=5), key(name="narrow")]
    others += [key({**inputs, role: "y"}) for role in ("features/wide/test", "features/wide/train", "passages/test")]
    assert len({key(), *others}) == 1 + len(others)
