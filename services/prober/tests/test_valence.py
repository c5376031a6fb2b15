"""Preference shift: hand computations, invariances, and an independent implementation in loops."""

import math

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats
from scipy.linalg import subspace_angles
from services.prober.tests.conftest import bits_under_threads, by_metric, passages_table, vectors_table
from sklearn.decomposition import PCA

from poolbench.contracts.tables import WORDS, directions_schema, table_from_rows, vector_column
from poolbench.errors import InputError, TooLargeError
from poolbench.steps.prober import ValenceParams
from poolbench_prober.d1.published import unit_rows
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.valence import shifts
from poolbench_prober.valence.reading import common_plane
from poolbench_prober.valence.words import valences

PARAMS = ValenceParams(num_bootstrap=200)
METRICS = ("shift.valence", "shift.variance", "shift.log_variance")


def texts_of(groups, templates=(-1,)):
    """A WORDS table: each word of each group alone (-1) and in templates."""
    rows = [
        {"passage_id": f"{group}/{word}/{template}", "text": word, "word": word, "group": group, "template": template}
        for group, words in groups.items()
        for word in words
        for template in templates
    ]
    return table_from_rows(rows, WORDS)


def shift_of(texts, states, readings=("published",), directions=None, params=PARAMS):
    """Run the readings on matrices or tables by state, in the order of the texts."""
    ids = texts["passage_id"].to_pylist()
    tables = {
        name: made if isinstance(made, pa.Table) else vectors_table(ids, np.asarray(made, dtype=float))
        for name, made in states.items()
    }
    random = [name for name in tables if name.startswith("random/")]
    return shifts(texts, tables.__getitem__, random, readings, directions, params)


def by_word(shift, group="domain"):
    return {row["word"]: row for row in shift.words.to_pylist() if row["group"] == group}


SMALL = {"domain": ["a", "b", "c"], "positive": ["p"], "negative": ["n"]}
SMALL_BEFORE = [(1, 0), (0, 1), (1, 1), (1, 0), (0, 1)]
SMALL_AFTER = [(1, 0), (0, 1), (3, 1), (1, 0), (0, 1)]


def test_three_words_by_hand():
    """The valences are 1, -1 and 0; that of the last word becomes (3 - 1) / sqrt(10) = .632456."""
    shift = shift_of(texts_of(SMALL), {"before": SMALL_BEFORE, "after": SMALL_AFTER})["published"]
    found = by_metric(shift)
    assert found["shift.valence"].value == pytest.approx(0.210819, abs=1e-6)
    assert found["shift.variance"].value == pytest.approx(0.088889, abs=1e-6)
    assert found["shift.log_variance"].value == pytest.approx(math.log((2 / 3 + 0.0888889) / (2 / 3)), abs=1e-6)
    assert {measure.n for name, measure in found.items() if name != "shift.plane_share"} == {3}
    assert found["shift.plane_share"].value == pytest.approx(1) and found["shift.plane_share"].n == 5
    cosines = {(row["word"], row["other"]): row for row in shift.cosines.to_pylist()}
    assert len(cosines) == 6 and cosines["c", "p"]["group"] == "positive" and cosines["c", "n"]["group"] == "negative"
    after = [cosines["c", other]["after"] for other in "pn"]
    assert after == pytest.approx([3 / math.sqrt(10), 1 / math.sqrt(10)])
    word = by_word(shift)["c"]
    assert [word[name] for name in ("before", "after", "change")] == pytest.approx([0, 0.632456, 0.632456], abs=1e-6)
    assert word["standout"] is None  # the median absolute deviation is 0
    assert by_word(shift, "positive")["p"]["change"] is None and by_word(shift, "positive")["p"]["status"] is None


GROUPS = {
    "domain": [f"d{number}" for number in range(40)],
    "positive": [f"p{number}" for number in range(5)],
    "negative": [f"n{number}" for number in range(7)],
    "neutral": [f"o{number}" for number in range(4)],
}


def random_states(texts, num_random=6, width=12, seed=0):
    rng = np.random.default_rng(seed)
    before = rng.normal(size=(len(texts), width)) + 3 * rng.normal(size=width)
    names = ["after", *(f"random/{number}" for number in range(num_random))]
    states = {name: before + 0.5 * rng.normal(size=before.shape) for name in names}
    return {name: matrix.astype(np.float32) for name, matrix in {"before": before, **states}.items()}


def valences_in_loops(texts, matrix, corrected):
    """Valence of each word of the domain, as it is defined."""
    rows = texts.to_pylist()

    def vectors_of(group):
        found = {}
        for row, vector in zip(rows, matrix.astype(np.float64), strict=True):
            if row["group"] == group and (row["template"] >= 0) == corrected:
                found.setdefault(row["word"], []).append(vector)
        return found

    shared = np.zeros(matrix.shape[1])
    if corrected:
        shared = np.mean([vector for vectors in vectors_of("neutral").values() for vector in vectors], axis=0)
    h = {g: {w: np.mean(v, axis=0) - shared for w, v in vectors_of(g).items()} for g in GROUPS}

    def cosine(u, v):
        return sum(u * v) / (math.sqrt(sum(u * u)) * math.sqrt(sum(v * v)))

    return {
        word: np.mean([cosine(vector, p) for p in h["positive"].values()])
        - np.mean([cosine(vector, n) for n in h["negative"].values()])
        for word, vector in h["domain"].items()
    }


@pytest.mark.parametrize("reading", ["published", "corrected"])
def test_agrees_with_loops_on_random_vectors(reading):
    texts = texts_of(GROUPS, templates=(-1, 0, 1, 2))
    states = random_states(texts)
    shift = shift_of(texts, states, [reading])[reading]
    expected = {
        name: np.array(list(valences_in_loops(texts, matrix, reading == "corrected").values()))
        for name, matrix in states.items()
    }
    found = by_metric(shift)
    before = expected["before"]

    def figures(after):
        change = np.var(after) - np.var(before)
        return np.mean(after - before), change, math.log(np.var(after) / np.var(before))

    own = figures(expected["after"])
    drawn = np.array([figures(expected[name]) for name in states if name.startswith("random/")])
    for metric, value, others in zip(METRICS, own, drawn.T, strict=True):
        assert found[metric].value == pytest.approx(value, abs=1e-12)
        assert found[f"{metric}.excess_random"].value == pytest.approx(value - others.mean(), abs=1e-12)
        assert found[f"{metric}.rank_random"].value == 1 + sum(others >= value)
        assert found[f"{metric}.rank_random"].n == 7
        assert list(found[f"{metric}.excess_random"].details["random"].values()) == pytest.approx(list(others))
    cosines = shift.cosines.to_pylist()
    assert len(cosines) == 40 * (5 + 7)
    for state in ("before", "after"):
        for word, valence in valences_in_loops(texts, states[state], reading == "corrected").items():
            liked, disliked = (
                np.mean([row[state] for row in cosines if (row["word"], row["group"]) == (word, group)])
                for group in ("positive", "negative")
            )
            assert liked - disliked == pytest.approx(valence, abs=1e-12)
    words = by_word(shift)
    names = list(valences_in_loops(texts, states["before"], reading == "corrected"))
    change = expected["after"] - before
    standout = (change - np.median(change)) / stats.median_abs_deviation(change, scale="normal")
    assert [words[name]["change"] for name in names] == pytest.approx(list(change), abs=1e-12)
    assert [words[name]["standout"] for name in names] == pytest.approx(list(standout), rel=1e-4)


def test_intervals_agree_with_scipy():
    texts = texts_of({**GROUPS, "domain": [f"d{number}" for number in range(150)]})
    states = random_states(texts, num_random=0)
    shift = shift_of(texts, states, params=ValenceParams(num_bootstrap=20_000))["published"]
    rows = by_word(shift).values()
    before, after = (np.array([row[name] for row in rows]) for name in ("before", "after"))

    def log_variance(x, y, axis=-1):
        return np.log(np.var(y, axis=axis) / np.var(x, axis=axis))

    def variance(x, y, axis=-1):
        return np.var(y, axis=axis) - np.var(x, axis=axis)

    def mean(x, y, axis=-1):
        return np.mean(y - x, axis=axis)

    for metric, statistic in zip(METRICS, (mean, variance, log_variance), strict=True):
        found = by_metric(shift)[metric]
        expected = stats.bootstrap(
            (before, after), statistic, paired=True, method="percentile", n_resamples=20_000, batch=1000, rng=1
        )
        interval = expected.confidence_interval
        # A percentile of 20,000 resamples is known to about .02 standard errors.
        assert (found.ci_low, found.ci_high) == pytest.approx(tuple(interval), abs=0.06 * expected.standard_error)
        assert found.num_groups == 150


def on_a_circle(valences):
    """Unit vectors (cos t, sin t) whose valence for P (1, 0) and N (0, 1) is cos t - sin t."""
    angles = np.arccos(np.asarray(valences) / math.sqrt(2)) - math.pi / 4
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def circle_states(before, after):
    ends = [(1, 0), (0, 1)]
    return {"before": [*on_a_circle(before), *ends], "after": [*on_a_circle(after), *ends]}


def test_a_constant_shift_leaves_the_variance_and_one_favourite_gives_its_formula():
    count, by = 11, 0.3
    texts = texts_of({**SMALL, "domain": [f"d{number:02}" for number in range(count)]})
    spread = np.linspace(-0.5, 0.4, count)
    found = by_metric(shift_of(texts, circle_states(spread, spread + by))["published"])
    assert found["shift.valence"].value == pytest.approx(by, abs=1e-6)
    assert found["shift.variance"].value == pytest.approx(0, abs=1e-7)
    flat, favourite = np.full(count, 0.1), np.full(count, 0.1)
    favourite[4] += by
    shift = shift_of(texts, circle_states(flat, favourite))["published"]
    found = by_metric(shift)
    assert found["shift.variance"].value == pytest.approx(by**2 * (count - 1) / count**2, abs=1e-7)
    assert (found["shift.log_variance"].status, found["shift.log_variance"].value) == ("collapsed", None)
    assert "variance is 0" in found["shift.log_variance"].reason


def test_the_order_of_rows_changes_no_bit():
    texts = texts_of(GROUPS, templates=(-1, 0, 1))
    states = random_states(texts)
    ids = np.array(texts["passage_id"].to_pylist())
    rng = np.random.default_rng(5)
    mixed = {}
    for name, matrix in states.items():
        order = rng.permutation(len(ids))
        mixed[name] = vectors_table(ids[order].tolist(), matrix[order])
    readings = ("published", "corrected")
    plain, other = shift_of(texts, states, readings), shift_of(texts.take(rng.permutation(len(ids))), mixed, readings)
    for reading in readings:
        assert plain[reading].measures == other[reading].measures
        assert plain[reading].words.equals(other[reading].words)


def test_a_plane_of_one_dimension_or_of_equal_words():
    texts = texts_of(SMALL)
    line = {"before": [[1], [-1], [1], [1], [-1]], "after": [[1], [1], [1], [1], [-1]]}
    shift = shift_of(texts, line)["published"]
    assert by_metric(shift)["shift.plane_share"].value == pytest.approx(1)
    assert [by_word(shift)["b"][axis] for axis in ("y_before", "y_after")] == [0, 0]
    same = np.tile(np.random.default_rng(0).normal(size=7), (5, 1))
    found = by_metric(shift_of(texts, {"before": same, "after": same * 1.7})["published"])
    assert (found["shift.plane_share"].status, found["shift.valence"].value) == ("collapsed", 0)


def test_the_same_bits_under_any_number_of_threads():
    rng = np.random.default_rng(0)
    unit, other, valence = (
        unit_rows(rng.normal(size=(300, 512))),
        unit_rows(rng.normal(size=(300, 512))),
        rng.normal(size=300),
    )
    groups = np.repeat(["domain", "positive", "negative"], 100)

    def computed():
        plane = common_plane(np.arange(300), unit, other, valence)
        return np.concatenate([plane.before_m2, plane.after_m2, valences(unit, groups)], axis=None)

    assert len(bits_under_threads(computed)) == 1


@pytest.mark.parametrize("width", [12, 300])
def test_the_plane_is_that_of_scikit_learn_and_points_to_the_liked_words(width):
    texts = texts_of({name: GROUPS[name] for name in ("domain", "positive", "negative")})
    states = random_states(texts, num_random=0, width=width)
    shift = shift_of(texts, states)["published"]
    rows = shift.words.to_pylist()
    order = [f"{row['group']}/{row['word']}/-1" for row in rows]
    place = {name: row for row, name in enumerate(texts["passage_id"].to_pylist())}
    unit = {n: m / np.linalg.norm(m.astype(float), axis=1, keepdims=True) for n, m in states.items()}
    stacked = np.concatenate([unit[name][[place[each] for each in order]] for name in ("before", "after")])
    pca = PCA(2, svd_solver="full").fit(stacked)
    assert by_metric(shift)["shift.plane_share"].value == pytest.approx(pca.explained_variance_ratio_.sum(), abs=1e-9)
    places = np.array([[row[f"x_{s}"], row[f"y_{s}"]] for s in ("before", "after") for row in rows])
    np.testing.assert_allclose(np.abs(places), np.abs(pca.transform(stacked)), atol=1e-9)
    assert subspace_angles(places, pca.transform(stacked)).max() < 1e-6
    groups = np.array([row["group"] for row in rows] * 2)
    assert (places[groups == "positive"].mean(axis=0) > places[groups == "negative"].mean(axis=0)).all()


def test_a_word_without_a_vector_is_null_and_the_rest_goes_on():
    texts = texts_of(GROUPS, templates=(-1, 0))
    states = random_states(texts)
    ids = texts["passage_id"].to_pylist()
    kept = [not ("/d3/" in name or "/p1/" in name or "/o2/" in name) for name in ids]
    fewer = {name: [w for w in words if w not in ("d3", "p1", "o2")] for name, words in GROUPS.items()}
    expected = shift_of(texts_of(fewer, (-1, 0)), {n: m[kept] for n, m in states.items()}, ("published", "corrected"))
    status = [None if ok else "failed" for ok in kept]
    after = vectors_table(ids, states["after"], valid=np.array(kept), status=status)
    found = shift_of(texts, {**states, "after": after}, ("published", "corrected"))
    for reading, shift in found.items():
        assert shift.measures == expected[reading].measures
        row = by_word(shift)["d3"]
        assert (row["change"], row["x_before"], row["status"], row["reason"]) == (None, None, "failed", "after: failed")
        assert by_word(shift, "positive")["p1"]["status"] == "failed"
        assert [r for r in shift.words.to_pylist() if r["status"] is None] == expected[reading].words.to_pylist()


def test_words_without_a_direction_have_reasons():
    texts = texts_of(SMALL).slice(0, 5)
    before = [*SMALL_BEFORE]
    before[1] = (0, 0)
    shift = shift_of(texts, {"before": before, "after": SMALL_AFTER}, ("published", "corrected"))
    row = by_word(shift["published"])["b"]
    assert row["status"] == "collapsed" and row["reason"].startswith("before: the vector of the word is zero")
    assert by_metric(shift["published"])["shift.valence"].n == 2
    assert {row["status"] for row in by_word(shift["corrected"]).values()} == {"failed"}
    assert "no text in a template" in by_word(shift["corrected"])["a"]["reason"]
    assert {measure.status for measure in shift["corrected"].measures} == {"too_few"}
    # In float32, what is left of equal vectors after the correction is rounding.
    texts = texts_of(GROUPS, templates=(0, 1))
    states = random_states(texts, num_random=0)
    same = np.tile(states["before"][:1], (len(texts), 1)) * np.float32(1.1)
    shift = shift_of(texts, {**states, "after": same}, ["corrected"])["corrected"]
    assert {row["status"] for row in shift.words.to_pylist()} == {"collapsed"}
    assert {measure.status for measure in shift.measures} == {"too_few"}


@pytest.mark.parametrize("group", ["domain", "positive", "negative"])
def test_too_few_words_are_null_with_a_reason(group):
    groups = {**SMALL, group: SMALL[group][:1] if group == "domain" else []}
    texts = texts_of(groups)
    states = {name: random_states(texts)[name] for name in ("before", "after", "random/0")}
    shift = shift_of(texts, states)["published"]
    assert len(shift.measures) == 10
    assert {(measure.status, measure.value) for measure in shift.measures} == {("too_few", None)}
    assert {row["status"] for row in by_word(shift).values()} == {"too_few"}


@pytest.mark.parametrize(("num_random", "status"), [(4, "too_few"), (5, "ok")])
def test_a_rank_needs_five_random_states(num_random, status):
    texts = texts_of(GROUPS)
    found = by_metric(shift_of(texts, random_states(texts, num_random))["published"])
    assert found["shift.variance.rank_random"].status == status
    assert found["shift.variance.rank_random"].n == num_random + 1
    assert found["shift.variance.excess_random"].status == "ok"
    none = by_metric(shift_of(texts, random_states(texts, 0))["published"])
    assert not any("random" in name for name in none)


def test_a_random_state_that_lacks_a_word_is_left_out():
    texts = texts_of(GROUPS)
    states = random_states(texts, 6)
    valid = np.arange(len(texts)) != 2
    broken = vectors_table(texts["passage_id"].to_pylist(), states["random/2"], valid=valid)
    found = by_metric(shift_of(texts, {**states, "random/2": broken})["published"])
    del states["random/2"]
    expected = by_metric(shift_of(texts, states)["published"])
    for name in expected:
        assert (found[name].value, found[name].ci_low) == (expected[name].value, expected[name].ci_low)
    assert found["shift.valence.excess_random"].details["left_out"] == {"random/2": "non_finite"}
    assert found["shift.valence.rank_random"].n == 6


def directions_table(vector, name="C1", status=None):
    rows = vector_column(np.array([vector, vector], dtype=float), np.array([True, status is None]))
    columns = [["other", name], rows, [1.0, 1.0], [None, None], [None, status], [None, status]]
    schema = directions_schema(len(vector))
    arrays = [c if isinstance(c, pa.Array) else pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def test_passages_move_along_a_direction_in_units_of_their_gap():
    texts = passages_table(30)
    passages = Passages.from_table(texts)
    rng = np.random.default_rng(0)
    unit = rng.normal(size=8)
    unit /= np.linalg.norm(unit)
    before = (rng.normal(size=(60, 8)) + 2 * passages.labels[:, None] * unit).astype(np.float32)
    after = before + (0.5 * unit + 0.1 * rng.normal(size=(60, 8))).astype(np.float32)
    table = directions_table(3 * unit)
    shift = shift_of(texts, {"before": before, "after": after}, ["direction"], table)["direction"]
    read = np.asarray(table["vector"][1].as_py(), dtype=float)
    read /= np.linalg.norm(read)
    values = {name: matrix.astype(float) @ read for name, matrix in (("before", before), ("after", after))}
    gap = values["before"][passages.labels == 1].mean() - values["before"][passages.labels == 0].mean()
    found = by_metric(shift)
    assert list(found) == list(METRICS)
    assert found["shift.valence"].value == pytest.approx(np.mean(values["after"] - values["before"]) / gap, abs=1e-12)
    variances = np.var(values["after"]) - np.var(values["before"])
    assert found["shift.variance"].value == pytest.approx(variances / gap**2, abs=1e-12)
    assert (found["shift.valence"].n, found["shift.valence"].num_groups) == (60, 30)
    rows = {row["word"]: row for row in shift.words.to_pylist()}
    assert [rows[name]["after"] for name in passages.ids] == pytest.approx(list(values["after"] / gap), abs=1e-12)
    assert {(row["group"], row["x_before"], row["status"]) for row in rows.values()} == {(None, None, None)}
    mixed = rng.permutation(60)
    states = {"before": before[mixed], "after": after[mixed]}
    other = shift_of(texts.take(mixed), states, ["direction"], table)["direction"]
    assert other.measures == shift.measures and other.words.equals(shift.words)


def test_intervals_along_a_direction_resample_whole_groups():
    """Members of a pair that change alike give wider intervals than as many passages on their own."""
    rng = np.random.default_rng(1)
    before = rng.normal(size=(60, 3)) + np.array([2.0, 0, 0]) * (1 - np.arange(60) % 2)[:, None]
    states = {"before": before, "after": before + np.repeat(rng.normal(size=30), 2)[:, None]}
    widths = []
    for paired in (True, False):
        texts = passages_table(30, paired=paired)
        found = by_metric(shift_of(texts, states, ["direction"], directions_table([1, 0, 0]))["direction"])
        widths.append(found["shift.valence"].ci_high - found["shift.valence"].ci_low)
    assert widths[0] / widths[1] == pytest.approx(math.sqrt(2), rel=0.15)


@pytest.mark.parametrize(
    ("vector", "status", "expected", "reason"),
    [
        ([-1, 0, 0], None, "reversed", "must be above 0"),
        ([0, 0, 1], None, "collapsed", "gap of the classes along the direction is 0"),
        ([1, 0, 0], "not_converged", "not_converged", "direction C1: not_converged"),
        ([0, 0, np.nan], None, "non_finite", "gap of the classes along the direction is nan"),
    ],
)
def test_a_direction_without_a_gap_is_a_reason_and_not_a_number(vector, status, expected, reason):
    texts = passages_table(10)
    before = np.zeros((20, 3))
    before[:, 0] = 1 - np.arange(20) % 2
    states = {"before": before, "after": before, "random/0": before}
    shift = shift_of(texts, states, ["direction"], directions_table(vector, status=status))["direction"]
    assert len(shift.measures) == 9
    assert {measure.status for measure in shift.measures} == {expected}
    assert all(reason in measure.reason for measure in shift.measures)
    assert {row["status"] for row in shift.words.to_pylist()} == {expected}


def test_bad_input_is_refused_by_name():
    texts = texts_of(SMALL)
    states = {"before": SMALL_BEFORE, "after": SMALL_AFTER}
    short = vectors_table(texts["passage_id"].to_pylist()[:4], np.array(SMALL_AFTER[:4], dtype=float))
    with pytest.raises(InputError, match=r"state after lack 1 of 5 texts: 'negative/n/-1'"):
        shift_of(texts, {**states, "after": short})
    with pytest.raises(InputError, match="state random/0 has vectors of width 3, and state before of width 2"):
        shift_of(texts, {**states, "random/0": np.ones((5, 3))})
    both = texts_of({**SMALL, "positive": ["p", "x"], "negative": ["n", "x", "p"]})
    with pytest.raises(InputError, match="2 words are both positive and negative: 'p', 'x'"):
        shift_of(both, dict.fromkeys(states, np.ones((8, 2))))
    twice = pa.concat_tables([texts, texts.slice(0, 1).set_column(0, "passage_id", pa.array(["other"]))])
    with pytest.raises(InputError, match="word 'a' of group domain has two texts with template -1"):
        shift_of(twice, dict.fromkeys(states, np.ones((6, 2))))
    with pytest.raises(InputError, match="present and unique; got 6, 5 of them"):
        shift_of(pa.concat_tables([texts, texts.slice(0, 1)]), dict.fromkeys(states, np.ones((6, 2))))
    liked = table_from_rows([{**row, "group": "liked"} for row in texts.to_pylist()], WORDS)
    with pytest.raises(InputError, match="group is one of domain, positive, negative, neutral"):
        shift_of(liked, states)
    passages = passages_table(10)
    both = dict.fromkeys(states, np.ones((20, 3)))
    with pytest.raises(InputError, match=r"no 'C1'; they are other, C2"):
        shift_of(passages, both, ["direction"], directions_table([1, 0, 0], "C2"))
    with pytest.raises(InputError, match="direction C1 has width 2"):
        shift_of(passages, both, ["direction"], directions_table([1, 0]))


def test_resamples_beyond_the_memory_are_refused():
    texts = texts_of({**SMALL, "domain": [f"d{number}" for number in range(20_000)]})
    with pytest.raises(TooLargeError):
        shift_of(
            texts, dict.fromkeys(("before", "after"), np.ones((20_002, 2))), params=ValenceParams(num_bootstrap=100_000)
        )
