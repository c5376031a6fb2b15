"""Contrast of an autoencoder's features: hand computations, changes of width, and an independent implementation."""

import math

import numpy as np
import pyarrow as pa
import pytest
from services.prober.tests.conftest import by_metric

from poolbench.contracts.tables import FEATURES, STORIES, features_schema, table_from_rows
from poolbench.errors import InputError
from poolbench.steps.prober import FEATURES_OF_SUBJECT, SUBJECTS_OF_FEATURE, ContrastParams
from poolbench_prober.contrast import Pairs, StoryPairs, contrast, features_by_subject
from poolbench_prober.contrast.figures import CORRECTED, PUBLISHED
from poolbench_prober.contrast.scores import joint_standouts, standouts

PROTOCOLS = ("published", "corrected")


def features_table(stories, num_features=None, autoencoder="sae", **columns):
    """FEATURES of stories by id: dense means, or (means, tokens), or by part; `columns` overwrite those of each row."""
    rows, width = [], num_features
    for passage, parts in stories.items():
        for part, given in (parts if isinstance(parts, dict) else {"all": parts}).items():
            means, tokens = given if isinstance(given, tuple) else (given, 10)
            means = np.asarray(means, dtype=np.float32)
            width = num_features or len(means)
            active = np.flatnonzero(means)
            row = {"passage_id": passage, "part": part, "num_tokens": tokens, "features": active, "l0": len(active)}
            row |= {"means": means[active], "squared_error": 1.0, "squared_norm": 4.0}
            rows.append({**row, **columns})
    return table_from_rows(rows, FEATURES).replace_schema_metadata(features_schema(width, autoencoder).metadata)


def stories_table(rows):
    """STORIES of (row id, subject); the stories of row r are r+ and r-."""
    made = [{"row_id": row, "subject": subject, "first": f"{row}+", "second": f"{row}-"} for row, subject in rows]
    return table_from_rows(made, STORIES)


def read(stories, *tables):
    return StoryPairs.read(Pairs.from_table(stories), tables)


def run(stories, *tables, **params):
    return contrast(read(stories, *tables), ContrastParams(**{"num_bootstrap": 50, **params}))


def values(found):
    return {measure.metric: measure.value for measure in found.measures}


BY_HAND = {
    "a+": ([4, 1, 0, 0], 1),
    "a-": ([0, 1, 2, 0], 3),
    "b+": ([0, 2, 0, 1], 2),
    "b-": ([0, 0, 2, 1], 2),
}
HAND_ROWS = stories_table([("a", "A"), ("b", "B")])


@pytest.mark.parametrize(
    ("protocol", "subject_a", "subject_b"),
    [
        ("published", (1.305582, 0.993399, 1.147924), (0.866025, 0.5, 0.833333)),
        ("corrected", (1.305582 / 2, 0.783349 / 2, 1.322043 / 2), (0.866025 / 2, 0.783349 / 2, 1.166667 / 2)),
    ],
)
def test_two_subjects_by_hand(protocol, subject_a, subject_b):
    """Of A, |V1 - V2| is (4, 0, 2, 0), and I1, over 4 tokens, (1, 1, 1.5, 0). I2 of A is the I1 of B, (0, 1, 1, 1)."""
    found = run(HAND_ROWS, features_table(BY_HAND), protocol=protocol)
    names = ("contrastive", "independent", "interpretability")
    table = {row["subject"]: row for row in found.subjects.to_pylist()}
    for subject, expected in (("A", subject_a), ("B", subject_b)):
        assert [table[subject][name] for name in names] == pytest.approx(expected, abs=1e-6)
    for name, first, second in zip(names, subject_a, subject_b, strict=True):
        measure = by_metric(found)[f"ce.{name}"]
        assert measure.value == pytest.approx((first + second) / 2, abs=1e-6)
        assert measure.details["standard_error"] == pytest.approx(abs(first - second) / 2, abs=1e-6)
        assert (measure.n, measure.num_groups, measure.coverage) == (2, 2, 1.0)
    strongest = table["A"]["features"]
    assert strongest == [
        {"feature": 0, "first": 4.0, "second": 0.0, "sign": 1},
        {"feature": 2, "first": 0.0, "second": 2.0, "sign": -1},
    ]
    assert table["A"]["held_out"] is None and table["A"]["num_rows"] == 1


@pytest.mark.parametrize(("protocol", "scale"), [("published", 1), ("corrected", 2)])
def test_joint_normalisation_by_hand(protocol, scale):
    """Of A, V1 and V2 are (4, 1, 0, 0) and (0, 1, 2, 0): mean 1, variance 14 / 7, largest difference 4.

    Of B, (0, 2, 0, 1) and (0, 0, 2, 1): mean .75, variance 5.5 / 7, largest difference 2.
    """
    first, second = 4 / np.sqrt(2), 2 / np.sqrt(5.5 / 7)
    assert (first, second) == pytest.approx((2.828, 2.256), abs=1e-3)
    measure = by_metric(run(HAND_ROWS, features_table(BY_HAND), protocol=protocol))["ce.contrastive.joint"]
    assert measure.value == pytest.approx((first + second) / 2 / scale)
    assert measure.details["standard_error"] == pytest.approx((first - second) / 2 / scale)


def test_joint_normalisation_is_that_of_all_values_at_once():
    rng = np.random.default_rng(0)
    first, second = rng.exponential(size=(2, 3, 50))
    both = np.concatenate([first, second], axis=1)
    normal = (both - both.mean(axis=1, keepdims=True)) / both.std(axis=1, ddof=1, keepdims=True)
    expected = np.abs(normal[:, :50] - normal[:, 50:]).max(axis=1)
    np.testing.assert_allclose(joint_standouts(first, second), expected)
    np.testing.assert_allclose(joint_standouts(first + 7, 5 * second + 7), joint_standouts(first, 5 * second))
    assert joint_standouts(np.full((1, 7), 0.1), np.full((1, 7), 0.1))[0] == 0
    far = np.eye(1, 16384)
    assert joint_standouts(far, -far)[0] == pytest.approx(np.sqrt(2 * (2 * 16384 - 1)))


def test_figures_of_the_autoencoder_by_hand():
    """L0 is a mean over tokens: (2 * 1 + 2 * 3 + 2 * 2 + 2 * 2) / 8. The paper subtracts a quarter of it."""
    found = run(HAND_ROWS, features_table(BY_HAND), protocol="published")
    value = values(found)
    assert value["ce.l0"] == pytest.approx(2)
    assert value["ce.unexplained_variance"] == pytest.approx(0.25)
    assert value["ce.paper"] == pytest.approx(value["ce.contrastive"] + value["ce.independent"] - 0.25 * 2)
    assert (value["ce.dead_share"], value["ce.num_features"]) == (0, 4)
    assert list(value) == list(PUBLISHED)
    wider = run(HAND_ROWS, features_table(BY_HAND, num_features=8))
    assert values(wider)["ce.dead_share"] == pytest.approx(0.5)
    assert list(values(wider)) == list(CORRECTED)


def test_a_feature_stands_out_at_most_by_the_bound_and_equal_ones_do_not():
    one_hot = np.eye(1, 16384)
    assert standouts(one_hot)[0] == pytest.approx(127.992, abs=1e-3)
    assert standouts(np.full((1, 7), 0.1))[0] == pytest.approx(0, abs=1e-12)
    assert standouts(np.zeros((1, 7)))[0] == 0


def sparse_stories(num_subjects=6, num_rows=4, width=400, l0=25, effect=0.0, seed=0):
    """Stories with random features, in which feature 2 s + 1 differs between the sides of subject s."""
    rng = np.random.default_rng(seed)
    stories, rows = {}, []
    for subject in range(num_subjects):
        for row in range(num_rows):
            name = f"{subject}/{row}"
            rows.append((name, f"subject {subject}"))
            for side, sign in (("+", 1), ("-", -1)):
                means = np.zeros(width)
                means[rng.choice(width, l0, replace=False)] = rng.exponential(size=l0)
                means[(2 * subject + 1) % width] = max(0.0, 1 + sign * effect)
                stories[name + side] = (means.astype(np.float32), int(rng.integers(5, 40)))
    return stories_table(rows), stories


def in_loops(rows, stories, protocol):
    """Contrastive, independent and interpretability, and their nulls, as they are defined: in plain Python."""

    def z(values):
        mean = math.fsum(values) / len(values)
        sd = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)) or 1
        scale = math.sqrt(len(values)) if protocol == "corrected" else 1
        return max((x - mean) / sd for x in values) / scale

    def joint(first, second):
        (v1, n1), (v2, n2) = stories[first], stories[second]
        return [(n1 * float(a) + n2 * float(b)) / (n1 + n2) for a, b in zip(v1, v2, strict=True)]

    def scores(first, second, other):
        difference = [abs(float(a) - float(b)) for a, b in zip(stories[first][0], stories[second][0], strict=True)]
        apart = [abs(a - b) for a, b in zip(joint(first, second), other, strict=True)]
        return z(difference), z(apart), z([a + b for a, b in zip(difference, apart, strict=True)])

    subjects = {}
    for row in sorted(rows.to_pylist(), key=lambda row: row["row_id"]):
        subjects.setdefault(row["subject"], []).append(row)
    width = len(next(iter(stories.values()))[0])
    own = {
        name: np.mean([joint(row["first"], row["second"]) for row in found], axis=0) for name, found in subjects.items()
    }
    table = {}
    for name, found in subjects.items():
        other = [0.0] * width
        if protocol == "corrected":
            other = list(np.mean([mean for each, mean in own.items() if each != name], axis=0))
        found_scores = [scores(row["first"], row["second"], other) for row in found]
        nulls = [
            scores(row[side], following[side], other)
            for row, following in zip(found, [*found[1:], found[0]], strict=True)
            for side in ("first", "second")
        ]
        table[name] = (np.mean(found_scores, axis=0), np.mean(nulls, axis=0))
    return table


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_agrees_with_plain_loops(protocol):
    rows, stories = sparse_stories(num_subjects=3, num_rows=3, width=60, l0=9, effect=0.5)
    found = run(rows, features_table(stories), protocol=protocol)
    expected = in_loops(rows, stories, protocol)
    names = ("contrastive", "independent", "interpretability")
    for row in found.subjects.to_pylist():
        assert [row[name] for name in names] == pytest.approx(expected[row["subject"]][0], rel=1e-9)
    value = values(found)
    means, nulls = (np.mean([pair[side] for pair in expected.values()], axis=0) for side in (0, 1))
    assert [value[f"ce.{name}"] for name in names] == pytest.approx(means, rel=1e-9)
    assert value["ce.contrastive.excess"] == pytest.approx(means[0] / nulls[0] - 1, rel=1e-9)
    assert value["ce.interpretability.excess"] == pytest.approx(means[2] / nulls[2] - 1, rel=1e-9)


def test_published_means_are_over_rows_and_corrected_ones_over_subjects():
    """Subject B has three rows, all alike."""
    stories = {**BY_HAND, **{f"b{n}{side}": BY_HAND[f"b{side}"] for n in (2, 3) for side in "+-"}}
    rows = stories_table([("a", "A"), ("b", "B"), ("b2", "B"), ("b3", "B")])
    tables = features_table(stories)
    assert values(run(rows, tables, protocol="published"))["ce.contrastive"] == pytest.approx(
        (1.305582 + 3 * 0.866025) / 4, abs=1e-6
    )
    corrected = values(run(rows, tables))
    assert corrected["ce.contrastive"] == pytest.approx((1.305582 + 0.866025) / 4, abs=1e-6)
    # A subject counts once among the others, however many rows it has.
    assert corrected["ce.independent"] == pytest.approx(0.783349 / 2, abs=1e-6)


WIDTH_FREE = ("ce.contrastive.excess", "ce.interpretability.excess")
SCORES = ("ce.contrastive", "ce.independent", "ce.interpretability")


def widened(stories, change):
    return {name: (change(means), tokens) for name, (means, tokens) in stories.items()}


def test_scores_of_wider_autoencoders():
    rows, stories = sparse_stories(effect=0.6, width=4000)
    more = widened(stories, lambda means: np.concatenate([means, np.zeros_like(means)]))
    ratio = {}
    for protocol in PROTOCOLS:
        before, after = (values(run(rows, features_table(each), protocol=protocol)) for each in (stories, more))
        ratio[protocol] = {name: after[name] / before[name] for name in SCORES}
        assert before["ce.held_out"] == after["ce.held_out"]
        for name in WIDTH_FREE:
            assert after[name] == pytest.approx(before[name], abs=0.02)
    assert all(1.39 <= found <= 1.42 for found in ratio["published"].values()), ratio
    assert all(0.98 <= found <= 1 for found in ratio["corrected"].values()), ratio
    rows, stories = sparse_stories(effect=0.6)
    twice = widened(stories, lambda means: np.repeat(means, 2))
    before, after = (values(run(rows, features_table(each))) for each in (stories, twice))
    for name in SCORES:
        assert after[name] / before[name] == pytest.approx(math.sqrt(0.5), abs=1e-3)
    assert after["ce.held_out"] == before["ce.held_out"]
    for name in WIDTH_FREE:
        assert after[name] == pytest.approx(before[name], abs=2e-3)


def test_held_out_is_chance_without_an_effect_and_rises_when_planted_directions_join():
    rows, noise = sparse_stories(num_subjects=80, width=60, l0=9)
    chance = values(run(rows, features_table(noise)))["ce.held_out"]
    assert chance == pytest.approx(0.5, abs=0.06)

    def joined(gap):
        """Return the stories with one feature more, which differs by `gap` between the sides of every subject."""
        return {
            name: (np.append(means, gap if name.endswith("+") else 0.0), tokens)
            for name, (means, tokens) in noise.items()
        }

    found = [values(run(rows, features_table(joined(gap))))["ce.held_out"] for gap in (1.5, 2.0, 5.0)]
    assert chance < found[0] < found[1] < found[2] == 1


def test_held_out_by_hand():
    """Row 1 chooses feature 0 with sign +; it is right on neither of rows like 2, and ties where both have it alike."""
    stories = {"1+": [2, 0], "1-": [0, 0], "2+": [0, 3], "2-": [1, 0]}
    rows = stories_table([("1", "A"), ("2", "A")])
    # Row 1 -> row 2: feature 0, 0 < 1: wrong. Row 2 -> row 1: feature 1, a tie.
    assert values(run(rows, features_table(stories), protocol="published"))["ce.held_out"] == 0.25


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_order_of_rows_and_shards_changes_nothing(protocol):
    rows, stories = sparse_stories(num_subjects=4, effect=0.4)
    names = list(stories)
    whole = run(rows, features_table(stories), protocol=protocol)
    shuffled = np.random.default_rng(3).permutation(len(names))
    parts = [
        {names[number]: stories[names[number]] for number in shuffled[start : start + 9]} for start in (0, 8, 16, 24)
    ]
    mixed = rows.take(pa.array(np.random.default_rng(4).permutation(rows.num_rows)))
    again = run(mixed, *map(features_table, reversed(parts)), protocol=protocol)
    assert again.measures == whole.measures and again.subjects.equals(whole.subjects)


def test_intervals_come_from_subjects_and_share_their_resamples():
    rows, stories = sparse_stories(num_subjects=30, num_rows=2, effect=0.5)
    found = by_metric(run(rows, features_table(stories), protocol="published", num_bootstrap=400))
    for name in (*SCORES, *WIDTH_FREE, "ce.held_out", "ce.l0", "ce.paper"):
        measure = found[name]
        assert measure.ci_low < measure.value < measure.ci_high, name
        assert measure.ci_method == "bootstrap over subjects, percentile" and measure.num_groups == 30
    assert found["ce.unexplained_variance"].ci_low == pytest.approx(0.25)  # the same share in every story
    assert found["ce.num_features"].ci_low is None


MARKS = {
    "a+": {"all": ([2, 1, 0, 0], 4), "marked": ([4, 0, 0, 0], 2), "unmarked": ([0, 2, 0, 0], 2)},
    "a-": {"all": ([1, 1, 0, 0], 4), "marked": ([4, 1, 0, 0], 1), "unmarked": ([0, 1, 0, 0], 3)},
}


def test_marked_tokens_by_hand():
    """M is (12, 1) / 3 and U (0, 7) / 5, so that |M - U| is (4, 16 / 15, 0, 0)."""
    rows = stories_table([("a", "A")])
    found = by_metric(run(rows, features_table(MARKS), protocol="published"))
    expected = standouts(np.array([[4, 16 / 15, 0, 0]]))[0]
    assert found["ce.independent.marked"].value == pytest.approx(expected)
    together = np.array([4, 1 / 3, 0, 0, 0, 7 / 5, 0, 0])
    assert found["ce.independent.joint"].value == pytest.approx(4 / together.std(ddof=1))
    both = found["ce.contrastive.joint"].value + found["ce.independent.joint"].value
    assert found["ce.interpretability.joint"].value == pytest.approx(both)
    assert found["ce.interpretability.sum"].value == pytest.approx(expected + found["ce.contrastive"].value)


def test_rows_without_marks_are_left_out_of_the_forms_that_need_them():
    stories = {**MARKS, "b+": [1, 0, 0, 0], "b-": {"all": [0, 1, 0, 0], "marked": [0, 1, 0, 0]}}
    rows = stories_table([("a", "A"), ("b", "B")])
    found = by_metric(run(rows, features_table(stories)))
    assert (found["ce.independent.marked"].n, found["ce.independent.marked"].coverage) == (1, 0.5)
    assert found["ce.contrastive"].n == 2
    none = by_metric(run(rows, features_table({name: [1, 0, 2] for name in ("a+", "a-", "b+", "b-")})))
    assert none["ce.independent.marked"].status == none["ce.independent.joint"].status == "no_coverage"
    assert none["ce.contrastive.joint"].value is not None
    assert "marked and unmarked tokens" in none["ce.interpretability.sum"].reason
    empty = {**MARKS, "a-": {**MARKS["a-"], "marked": ([0, 0, 0, 0], 0)}}
    assert by_metric(run(stories_table([("a", "A")]), features_table(empty)))["ce.independent.marked"].value is None


def test_one_subject_has_no_others_and_one_row_no_half():
    rows = stories_table([("a", "A")])
    tables = features_table({name: BY_HAND[name] for name in ("a+", "a-")})
    corrected = by_metric(run(rows, tables))
    assert {corrected[f"ce.{name}"].status for name in ("independent", "interpretability")} == {"too_few"}
    assert "one subject" in corrected["ce.independent"].reason
    assert corrected["ce.contrastive"].value is not None and corrected["ce.contrastive"].ci_low is None
    assert {corrected[name].status for name in ("ce.held_out", *WIDTH_FREE)} == {"too_few"}
    assert "no subject has two pairs" in corrected["ce.held_out"].reason
    published = by_metric(run(rows, tables, protocol="published"))
    assert published["ce.independent"].value == pytest.approx(0.993399, abs=1e-6)
    (row,) = run(rows, tables).subjects.to_pylist()
    assert row["independent"] is None and row["held_out"] is None and row["status"] is None


def test_a_subject_with_one_row_is_left_out_where_two_are_needed():
    rows, stories = sparse_stories(num_subjects=3, num_rows=2, effect=0.5)
    kept = [row for row in rows.to_pylist() if row["row_id"] != "2/1"]
    found = by_metric(run(table_from_rows(kept, STORIES), features_table(stories)))
    assert (found["ce.contrastive"].n, found["ce.contrastive"].num_groups) == (5, 3)
    assert (found["ce.held_out"].n, found["ce.held_out"].num_groups) == (4, 2)
    assert found["ce.contrastive.excess"].n == 4
    assert found["ce.held_out"].coverage == pytest.approx(4 / 5)


FAILED = {"status": "failed", "reason": "text 'secret' has no tokens"}


def failed_table(name):
    table = features_table({name: [0, 0, 0, 0]}, num_features=4, num_tokens=None, **FAILED)
    return table.set_column(3, FEATURES.field("features"), pa.nulls(1, FEATURES.field("features").type))


def test_a_story_without_features_or_finite_means_takes_its_row_out():
    rest = {name: story for name, story in BY_HAND.items() if name != "b-"}
    found = run(HAND_ROWS, features_table(rest), failed_table("b-"), protocol="published")
    measure = by_metric(found)["ce.contrastive"]
    assert (measure.value, measure.n) == (pytest.approx(1.305582, abs=1e-6), 1)
    assert measure.coverage == 0.5 and measure.details["left_out"] == {"failed": 1}
    row = {row["subject"]: row for row in found.subjects.to_pylist()}["B"]
    assert row["contrastive"] is None and row["num_rows"] == 0
    assert row["status"] == "failed" and "'b-'" in row["reason"]
    stories = {**BY_HAND, "a+": ([np.inf, 1, 0, 0], 1)}
    assert by_metric(run(HAND_ROWS, features_table(stories)))["ce.contrastive"].details["left_out"] == {"non_finite": 1}


def test_figures_without_rows_or_columns_are_null_with_the_reason():
    tables = [failed_table(name) for name in ("a+", "b+")]
    rest = features_table({name: BY_HAND[name] for name in ("a-", "b-")})
    for protocol, names in (("published", PUBLISHED), ("corrected", CORRECTED)):
        found = by_metric(run(HAND_ROWS, *tables, rest, protocol=protocol))
        assert list(found) == list(names)
        assert {found[name].status for name in names if name != "ce.num_features"} == {"failed"}
        assert found["ce.num_features"].value == 4 and "2 pairs of stories" in found["ce.l0"].reason
    found = by_metric(run(HAND_ROWS, features_table(BY_HAND, squared_error=None, l0=None), protocol="published"))
    assert {found[name].status for name in ("ce.unexplained_variance", "ce.l0", "ce.paper")} == {"not_implemented"}
    equal = by_metric(run(HAND_ROWS, features_table(BY_HAND, squared_norm=0.0)))
    assert equal["ce.unexplained_variance"].status == "collapsed"


def test_features_that_are_dead_alone_or_alike_have_no_scores():
    dead = by_metric(run(HAND_ROWS, features_table({name: [0, 0, 0] for name in BY_HAND})))
    assert {dead[name].status for name in (*SCORES, "ce.held_out", *WIDTH_FREE)} == {"collapsed"}
    assert (dead["ce.dead_share"].value, dead["ce.l0"].value) == (1, 0)
    single = by_metric(run(HAND_ROWS, features_table({name: [n + 1] for n, name in enumerate(BY_HAND)})))
    assert single["ce.contrastive"].status == "too_few" and single["ce.contrastive"].value is None
    stories = {f"{row}{side}": [1, 0, 0] if side == "+" else [0, 2, 0] for row in "12" for side in "+-"}
    found = by_metric(run(stories_table([("1", "A"), ("2", "A")]), features_table(stories), protocol="published"))
    assert found["ce.contrastive.excess"].status == "collapsed" and found["ce.held_out"].value == 1
    dead = read(HAND_ROWS, features_table({name: [0, 0, 0] for name in BY_HAND}))
    assert features_by_subject(dead).num_rows == 0


@pytest.mark.parametrize(
    ("rows", "tables", "message"),
    [
        (HAND_ROWS, [features_table({"a+": [1, 0]})], r"lack 3 of 4 stories: 'a-', 'b\+', 'b-'"),
        (HAND_ROWS, [features_table(BY_HAND), features_table(BY_HAND, autoencoder="b")], "different autoencoders"),
        (HAND_ROWS, [features_table(BY_HAND, features=[2, 1])], "must ascend, be below 4"),
        (HAND_ROWS, [features_table(BY_HAND, features=[4], means=[1.0])], "must ascend, be below 4"),
        (HAND_ROWS, [features_table(BY_HAND, means=[1.0])], "one mean each"),
        (HAND_ROWS, [features_table(BY_HAND, part="some")], "part 'some'.*all, marked, unmarked"),
        (HAND_ROWS, [features_table(BY_HAND).replace_schema_metadata(None)], "must hold num_features"),
        (HAND_ROWS.slice(0, 0), [features_table(BY_HAND)], "no rows"),
        (pa.concat_tables([HAND_ROWS, HAND_ROWS]), [features_table(BY_HAND)], "must be unique"),
        (stories_table([("a", "")]), [features_table(BY_HAND)], "needs a subject and two different stories"),
        (HAND_ROWS.drop_columns(["second"]), [features_table(BY_HAND)], "lacks the columns second"),
    ],
)
def test_malformed_tables_are_refused(rows, tables, message):
    with pytest.raises(InputError, match=message):
        run(rows, *tables)


def test_the_table_of_features_by_subject_agrees_with_a_loop():
    """Of A, V1 - V2 is (4, 0, -2, 0), with mean 1.5 and deviation 1.915 of its sizes."""
    (first, second, *rest) = features_by_subject(read(HAND_ROWS, features_table(BY_HAND))).to_pylist()
    assert [row["subject"] for row in rest] == ["B", "B"]
    assert (first["feature"], first["first"], first["second"], first["difference"]) == (0, 4.0, 0.0, 4.0)
    assert (second["feature"], second["difference"]) == (2, -2.0)
    assert [first["z"], second["z"]] == pytest.approx([2.5 / 1.914854, 0.5 / 1.914854], abs=1e-6)
    rng = np.random.default_rng(3)
    rows = stories_table([(f"{subject}{row}", subject) for subject in "ABC" for row in range(3)])
    stories = {f"{row['row_id']}{side}": rng.poisson(0.5, 12) for row in rows.to_pylist() for side in "+-"}
    table = features_by_subject(read(rows, features_table(stories)))
    expected = {}
    for subject in "ABC":
        sides = [np.mean([stories[f"{subject}{row}{side}"] for row in range(3)], axis=0) for side in "+-"]
        sizes = np.abs(sides[0] - sides[1])
        for feature in np.flatnonzero(sizes):
            z = (sizes[feature] - sizes.mean()) / sizes.std(ddof=1)
            expected[subject, feature] = (*(side[feature] for side in sides), z)
    found = {(row["subject"], row["feature"]): (row["first"], row["second"], row["z"]) for row in table.to_pylist()}
    assert found.keys() == expected.keys()
    for at, row in expected.items():
        assert found[at] == pytest.approx(row, abs=1e-6)


def test_a_large_table_has_the_strongest_of_each_subject_and_of_each_feature():
    """Feature f differs by f + 1 on every subject, a little more on later ones: only the best subjects of each stay."""
    num_features, num_subjects = FEATURES_OF_SUBJECT + 5, SUBJECTS_OF_FEATURE + 3
    rows = stories_table([(f"{n:02d}", f"s{n:02d}") for n in range(num_subjects)])
    stories = {}
    for n in range(num_subjects):
        stories[f"{n:02d}+"] = np.arange(1, num_features + 1) + n / 100
        stories[f"{n:02d}-"] = np.zeros(num_features)
    table = features_by_subject(read(rows, features_table(stories, num_features))).to_pylist()
    found = {(int(row["subject"][1:]), row["feature"]) for row in table}
    every = {(n, feature) for n in range(num_subjects) for feature in range(num_features)}
    assert every - found == {(n, feature) for n in range(3) for feature in range(5)}
    of_one = [row["feature"] for row in table if row["subject"] == "s00"]
    assert of_one == sorted(of_one, reverse=True)
