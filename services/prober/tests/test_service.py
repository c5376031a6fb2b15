"""The adapter over a real store and a real HTTP application."""

import json

import numpy as np
import pyarrow as pa
import pytest
from services.prober.tests.conftest import instances_table, passages_table, planted_vectors, vectors_table

from poolbench.contracts.tables import FEATURES as FEATURES_SCHEMA
from poolbench.contracts.tables import (
    MEASURES,
    SUBJECT_FEATURES,
    SUBJECT_SCORES,
    WORDS,
    directions_schema,
    features_schema,
    table_from_rows,
    vector_matrix,
    vectors_schema,
)
from poolbench.contracts.tables import STORIES as STORIES_SCHEMA
from poolbench.contracts.tables import WORD_SHIFTS as WORD_SHIFTS_SCHEMA
from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError, InputError, TooLargeError
from poolbench.steps.prober import (
    CONTRAST,
    ERASE,
    SHIFT_MEASURES,
    TASK,
    VALENCE,
    WORD_COSINES,
    WORD_SHIFTS,
    ContrastParams,
    TaskParams,
    ValenceParams,
)
from poolbench.storage.artifacts import Artifacts
from poolbench.storage.folder import FolderStore
from poolbench.worker.taskio import TaskIO
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.service import create

PARAMS = {"concept": "causation", "seed": 0, "folds": 5, "num_bootstrap": 100}


@pytest.fixture
def artifacts(tmp_path):
    store = Artifacts(FolderStore(tmp_path))
    for split, num_pairs in (("train", 60), ("test", 30)):
        table = passages_table(num_pairs, split)
        store.write_table(f"passages.{split}", table)
        passages = Passages.from_table(table)
        for strategy, matrix in (
            ("A1_mean", planted_vectors(passages, 2.0)),
            ("P2_first_token", np.ones((len(table), 24))),
        ):
            store.write_table(f"{split}.{strategy}", vectors_table(passages.ids, matrix))
    return store


def probe_task():
    inputs = {f"passages/{split}": f"passages.{split}" for split in ("train", "test")}
    outputs = {}
    for strategy in ("A1_mean", "P2_first_token"):
        inputs |= {f"{split}/{strategy}/1": f"{split}.{strategy}" for split in ("train", "test")}
        outputs |= {f"{part}/{strategy}/1": f"{part}.{strategy}" for part in ("measures", "directions", "scores")}
    return Task(kind="prober.probe", inputs=inputs, outputs=outputs, params=PARAMS)


def run(service, task, artifacts):
    service.handlers[task.kind](task, TaskIO(task, artifacts))


def test_probe_writes_every_output(artifacts):
    service = create()
    run(service, probe_task(), artifacts)
    measures = artifacts.read_table("measures.A1_mean")
    assert measures.schema.names == [*MEASURES.names, "details"]
    values = dict(zip(measures["metric"].to_pylist(), measures["value"].to_pylist(), strict=True))
    assert values["d1.auroc"] > 0.8
    assert set(artifacts.read_table("measures.P2_first_token")["status"].to_pylist()) == {"collapsed"}
    directions = artifacts.read_table("directions.P2_first_token")
    assert directions["vector"].null_count == directions.num_rows
    assert artifacts.read_table("scores.A1_mean").num_rows == 180
    assert service.health() == {"cells_probed": 2}


def test_probe_redoes_only_what_is_missing(artifacts):
    run(create(), probe_task(), artifacts)
    before = artifacts.read_table("directions.A1_mean")
    artifacts.delete("directions.A1_mean")
    kept = artifacts.manifest("measures.A1_mean")
    service = create()
    run(service, probe_task(), artifacts)
    assert artifacts.read_table("directions.A1_mean").equals(before)
    assert artifacts.manifest("measures.A1_mean") == kept
    assert service.health() == {"cells_probed": 1}


def test_nulls_are_unit_vectors(artifacts):
    task = Task(
        kind="prober.nulls",
        inputs={"passages/train": "passages.train", "train/A1_mean/1": "train.A1_mean"},
        outputs={"nulls": "nulls.1"},
        params={"num_nulls": 20, "seed": 1},
    )
    run(create(), task, artifacts)
    table = artifacts.read_table("nulls.1")
    assert table["direction_id"].to_pylist()[-1] == "null_019"
    np.testing.assert_allclose(np.linalg.norm(vector_matrix(table["vector"]), axis=1), 1, rtol=1e-6)


def test_parts_are_read_out_and_neighbours_get_the_same_directions(artifacts):
    width, num_parts = 6, 4
    for split in ("train", "test"):
        passages = Passages.from_table(artifacts.read_table(f"passages.{split}"))
        parts = np.random.default_rng(1).normal(size=(len(passages.ids), num_parts, width))
        parts[:, 2, 0] += 3.0 * passages.labels
        table = vectors_table(passages.ids, parts.reshape(len(parts), -1))
        artifacts.write_table(f"{split}.S3", table.cast(vectors_schema(width, num_parts, "best_heads")))
    role = "S3_iti_probe/1"
    inputs = {f"passages/{split}": f"passages.{split}" for split in ("train", "test")}
    inputs |= {f"{split}/{role}": f"{split}.S3" for split in ("train", "test")}
    outputs = {f"{part}/{role}": f"{part}.S3" for part in ("measures", "directions", "scores")}
    run(create(), Task(kind="prober.probe", inputs=inputs, outputs=outputs, params=PARAMS), artifacts)
    rows = {row["metric"]: row for row in artifacts.read_table("measures.S3").to_pylist()}
    assert rows["d1.auroc"]["value"] > 0.8
    assert [found["heads"] for found in json.loads(rows["d1.auroc"]["details"])["readouts"]] == [[2]] * 5
    own = artifacts.read_table("directions.S3")
    assert own.schema.field("vector").type.list_size == width
    assert json.loads(own.schema.metadata[b"readout"])["heads"] == [2]

    inputs = {name: inputs[name] for name in ("passages/train", f"train/{role}")}
    task = Task(kind="prober.directions", inputs=inputs, outputs={f"directions/{role}": "near.S3"}, params=PARAMS)
    run(create(), task, artifacts)
    assert artifacts.read_table("near.S3").equals(own, check_metadata=True)


@pytest.fixture
def probing_task(tmp_path):
    """A store with the instances of a task of pairs, and the vectors of their passages in shards; and its inputs."""
    rng, store = np.random.default_rng(0), Artifacts(FolderStore(tmp_path))
    ids = [f"i{row}" for row in range(120)]
    parts = [{"first": [f"{name}a", f"{name}b"], "second": [f"{name}c"]} for name in ids]
    rows = [{**part, "label": ["noun", "verb", "other"][row % 3]} for row, part in enumerate(parts)]
    store.write_table("instances", instances_table(rows))
    first = rng.normal(size=(120, 5)) + 4 * np.eye(3, 5)[np.arange(120) % 3]
    noise = rng.normal(size=(120, 5))
    passages = [f"{name}{part}" for part in "abc" for name in ids]
    matrix = np.concatenate([first + noise, first - noise, rng.normal(size=(120, 5))])
    for shard, rows in enumerate((slice(0, 200), slice(150, 360))):  # they overlap
        store.write_table(f"shard{shard}", vectors_table(passages[rows], matrix[rows]))
    store.write_table("twice", vectors_table(["i0a", "i0a"], matrix[:2]))
    inputs = {"instances": "instances", "vectors/broken/2/0": "twice"}
    return store, inputs | {f"vectors/A1_mean/2/{shard}": f"shard{shard}" for shard in (0, 1)}


def test_a_task_is_probed_on_every_cell_and_a_broken_one_takes_only_itself_down(probing_task):
    store, inputs = probing_task
    params = TaskParams(task="pos", num_bootstrap=20)
    roles = [f"{part}/{cell}/2" for part in ("measures", "predictions") for cell in ("A1_mean", "broken")]
    task = TASK.task(params, inputs, roles)
    run(create(), task, store)
    rows = {row["metric"]: row for row in store.read_table(task.outputs["measures/A1_mean/2"]).to_pylist()}
    assert rows["probe.macro_f1"]["value"] > 0.7
    assert rows["probe.compression"]["value"] > 1
    assert (rows["probe.left_out"]["value"], rows["probe.seen_share"]["value"]) == (0, 0)
    predictions = store.read_table(task.outputs["predictions/A1_mean/2"]).to_pylist()
    test = [row for row in predictions if row["split"] == "test"]
    hits = [row["predicted"] == row["truth"] for row in test]
    assert np.mean(hits) == pytest.approx(rows["probe.accuracy"]["value"]) and len(hits) == rows["probe.accuracy"]["n"]
    broken = store.read_table(task.outputs["measures/broken/2"]).to_pylist()
    assert {row["metric"] for row in broken} == set(rows)
    assert {row["status"] for row in broken} == {"failed"}
    assert "1 rows are duplicates" in broken[0]["reason"]
    nothing = store.read_table(task.outputs["predictions/broken/2"]).to_pylist()
    assert {row["predicted"] for row in nothing} == {None} and len(nothing) == 120

    store.delete(task.outputs["predictions/A1_mean/2"])
    run(create(), task, store)
    assert store.read_table(task.outputs["predictions/A1_mean/2"]).to_pylist() == predictions


def test_names_and_order_of_shards_change_neither_keys_nor_figures(probing_task):
    store, inputs = probing_task
    outputs = ["measures/A1_mean/2", "predictions/A1_mean/2"]
    swapped = inputs | {"vectors/A1_mean/2/0": "shard1", "vectors/A1_mean/2/1": "shard0", "vectors/other/2/x": "shard0"}
    found = []
    for number, roles in enumerate((inputs, swapped)):
        params = TaskParams(task=f"name {number}", num_bootstrap=20)
        task = TASK.task(params, roles, outputs)
        run(create(), task, store)
        found.append((dict(task.outputs), [store.read_table(key).to_pylist() for key in task.outputs.values()]))
        for key in task.outputs.values():
            store.delete(key)
    assert found[0] == found[1]


def test_predictions_depend_neither_on_resamples_nor_on_code_lengths():
    inputs = {"instances": "i", "vectors/A1_mean/2/0": "v"}

    def keys(**params):
        parsed = TASK.parse(params)
        return [TASK.key(f"{part}/A1_mean/2", parsed, inputs) for part in ("predictions", "measures")]

    base = keys()
    assert [a == b for a, b in zip(base, keys(num_bootstrap=5, compression=False), strict=True)] == [True, False]
    assert [a == b for a, b in zip(base, keys(seeds=[1]), strict=True)] == [False, False]
    released = keys(protocol="released")
    assert released == keys(protocol="released", seeds=[0, 1, 2, 3, 4]) and not set(released) & set(base)
    assert TASK.parse({"protocol": "paper"}).seeds == (0, 1, 2, 3, 4)
    assert TASK.parse({}).seeds == (0,)


@pytest.fixture
def word_states(tmp_path):
    """Texts and three states in a store, and the inputs of a task on them."""
    store = Artifacts(FolderStore(tmp_path))
    groups = {"domain": 9, "positive": 2, "negative": 2, "neutral": 2}
    rows = [
        {"passage_id": f"{word}/{template}", "word": word, "group": group, "template": template}
        for group, count in groups.items()
        for word in (f"{group}{number}" for number in range(count))
        for template in (-1, 0, 1)
    ]
    store.write_table("texts", table_from_rows(rows, WORDS))
    rng, ids = np.random.default_rng(0), [row["passage_id"] for row in rows]
    for state in ("before", "after", "random0"):
        store.write_table(state, vectors_table(ids, rng.normal(size=(len(ids), 5))))
    vectors = {f"vectors/{name}": name.replace("/", "") for name in ("before", "after", "random/0")}
    return store, {"words": "texts", **vectors}


def test_preference_shift_writes_what_is_missing_by_each_reading(word_states):
    store, inputs = word_states
    params = ValenceParams(num_bootstrap=20, seed=3, name="tune")
    readings = ("published", "corrected")
    roles = [role(reading) for role in (SHIFT_MEASURES, WORD_SHIFTS, WORD_COSINES) for reading in readings]
    task = VALENCE.task(params, inputs, roles)
    assert len(set(task.outputs.values())) == 6
    run(create(), task, store)
    values = {}
    for reading in readings:
        measures = store.read_table(task.outputs[f"measures/{reading}"])
        assert measures.schema.names == [*MEASURES.names, "details"]
        rows = {row["metric"]: row for row in measures.to_pylist()}
        assert len(rows) == 10 and rows["shift.valence"]["seed"] == 3
        assert rows["shift.valence.rank_random"]["reason"] == "1 random states; 5 are needed"
        values[reading] = rows["shift.valence"]["value"]
        words = store.read_table(task.outputs[f"words/{reading}"])
        assert words.schema == WORD_SHIFTS_SCHEMA and words.num_rows == 13
        change = [row["change"] for row in words.to_pylist() if row["group"] == "domain"]
        assert np.mean(change) == pytest.approx(values[reading])
        cosines = store.read_table(task.outputs[f"cosines/{reading}"]).to_pylist()
        liked, disliked = (
            np.mean([row["after"] - row["before"] for row in cosines if row["group"] == group])
            for group in ("positive", "negative")
        )
        assert liked - disliked == pytest.approx(values[reading])
    assert values["published"] != values["corrected"]
    kept = store.manifest(task.outputs["measures/published"])
    roles = ["words/published", "cosines/published"]
    tables = [store.read_table(task.outputs[role]) for role in roles]
    for role in roles:
        store.delete(task.outputs[role])
    store.delete("random0")  # the tables of words do not read it
    run(create(), task, store)
    assert store.manifest(task.outputs["measures/published"]) == kept
    assert [store.read_table(task.outputs[role]) for role in roles] == tables


def moved(step, params, inputs, roles, changes):
    """Return the outputs whose keys differ, for each change of the parameters or of the inputs."""
    plain = step.task(params(), inputs, roles).outputs
    found = {}
    for name, (values, others) in changes.items():
        outputs = step.task(params(**values), others, roles).outputs
        found[name] = {role for role in roles if outputs[role] != plain[role]}
    return found


def test_keys_of_a_preference_shift_are_of_what_each_output_reads(word_states):
    inputs = {**word_states[1], "direction": "d"}
    roles = ["measures/corrected", "words/corrected", "cosines/corrected", "measures/direction"]
    changes = {
        "seed": ({"seed": 1}, inputs),
        "name": ({"name": "x"}, inputs),
        "construction": ({"direction": "C3"}, inputs),
        "directions": ({}, {**inputs, "direction": "e"}),
        "random": ({}, {**inputs, "vectors/random/1": "f"}),
    }
    both = {"measures/corrected", "measures/direction"}
    along = {"measures/direction"}
    assert moved(VALENCE, ValenceParams, inputs, roles, changes) == {
        "seed": both, "name": set(), "construction": along, "directions": along, "random": both,
    }  # fmt: skip


def test_unknown_states_and_readings_are_refused(word_states):
    store, inputs = word_states
    task = VALENCE.task(ValenceParams(), {**inputs, "vectors/middle": "after"}, ["measures/published"])
    with pytest.raises(InputError, match="before, after or random/<number>, got 'middle'"):
        run(create(), task, store)
    task = VALENCE.task(ValenceParams(), {k: v for k, v in inputs.items() if k != "vectors/after"}, ["words/published"])
    with pytest.raises(InputError, match="has no input 'vectors/after'"):
        run(create(), task, store)
    with pytest.raises(ConfigError, match="output roles: measures/<reading>, words/<reading>, cosines"):
        VALENCE.task(ValenceParams(), inputs, ["measures/other"])
    task = VALENCE.task(ValenceParams(), inputs, ["measures/direction"])
    with pytest.raises(InputError, match="has no input 'direction'"):
        run(create(), task, store)


@pytest.fixture
def contrasts(tmp_path):
    """Stories of three subjects and features of two autoencoders in a store, and the inputs of a task on them."""
    store = Artifacts(FolderStore(tmp_path))
    names = [f"{subject}{row}" for subject in "abc" for row in (1, 2)]
    rows = [{"row_id": name, "subject": name[0], "first": f"{name}+", "second": f"{name}-"} for name in names]
    store.write_table("stories", table_from_rows(rows, STORIES_SCHEMA))
    rng, inputs = np.random.default_rng(0), {"stories": "stories"}
    for autoencoder, width in (("wide", 40), ("narrow", 10)):
        for shard in ("0", "1"):
            stories = [
                {"passage_id": row[side], "part": "all", "num_tokens": 5, "features": [0, 3, 7], "means": rng.random(3)}
                for row in rows[int(shard) :: 2]
                for side in ("first", "second")
            ]
            figures = {"l0": 3.0, "squared_error": 1.0, "squared_norm": 2.0}
            table = table_from_rows([story | figures for story in stories], FEATURES_SCHEMA)
            notes = features_schema(width, autoencoder).metadata
            store.write_table(f"{autoencoder}{shard}", table.replace_schema_metadata(notes))
            inputs[f"features/{autoencoder}/{shard}"] = f"{autoencoder}{shard}"
    return store, inputs


def test_contrast_writes_what_is_missing_of_each_autoencoder(contrasts):
    store, inputs = contrasts
    params = ContrastParams(num_bootstrap=20, seed=3)
    roles = [f"{part}/{name}" for part in ("measures", "subjects") for name in ("narrow", "wide")]
    task = CONTRAST.task(params, inputs, roles)
    assert len(set(task.outputs.values())) == 4
    run(create(), task, store)
    for name, width in (("narrow", 10), ("wide", 40)):
        measures = store.read_table(task.outputs[f"measures/{name}"])
        assert measures.schema.names == [*MEASURES.names, "details"]
        rows = {row["metric"]: row for row in measures.to_pylist()}
        assert rows["ce.num_features"]["value"] == width and rows["ce.contrastive"]["seed"] == 3
        assert "standard_error" in rows["ce.contrastive"]["details"]
        subjects = store.read_table(task.outputs[f"subjects/{name}"])
        assert subjects.schema == SUBJECT_SCORES and subjects["subject"].to_pylist() == ["a", "b", "c"]
        found = np.mean(subjects["contrastive"].to_pylist())
        assert found == pytest.approx(rows["ce.contrastive"]["value"])
    kept = store.manifest(task.outputs["measures/wide"])
    subjects = store.read_table(task.outputs["subjects/wide"])
    store.delete(task.outputs["subjects/wide"])
    store.delete("narrow0")  # the wide one does not read it
    run(create(), task, store)
    assert store.manifest(task.outputs["measures/wide"]) == kept
    assert store.read_table(task.outputs["subjects/wide"]).equals(subjects)


def test_the_table_of_features_is_written_without_the_scores(contrasts):
    """Its key depends on stories and features alone, so that no other setting computes it again."""
    store, inputs = contrasts
    tasks = [
        CONTRAST.task(ContrastParams(**params), inputs, ["by_feature/wide"])
        for params in ({}, {"num_bootstrap": 20, "seed": 3, "protocol": "published"})
    ]
    assert tasks[0].outputs == tasks[1].outputs
    run(create(), tasks[0], store)
    table = store.read_table(tasks[0].outputs["by_feature/wide"])
    assert table.schema == SUBJECT_FEATURES
    assert sorted(set(zip(table["subject"].to_pylist(), table["feature"].to_pylist(), strict=True))) == [
        (subject, feature) for subject in "abc" for feature in (0, 3, 7)
    ]


def test_a_contrast_that_needs_too_much_or_has_no_features_is_refused(contrasts):
    store, inputs = contrasts
    names = map(str, range(40_000))
    rows = [{"row_id": name, "subject": name, "first": f"{name}+", "second": f"{name}-"} for name in names]
    store.write_table("many", table_from_rows(rows, STORIES_SCHEMA))
    task = CONTRAST.task(ContrastParams(num_bootstrap=100_000), inputs | {"stories": "many"}, ["measures/wide"])
    with pytest.raises(TooLargeError, match="resamples need bytes"):
        run(create(), task, store)
    store, inputs = contrasts
    task = CONTRAST.task(ContrastParams(), inputs, ["measures/other"])
    with pytest.raises(InputError, match="no features of 'other'; give features/<autoencoder>/<shard>"):
        run(create(), task, store)


def test_keys_of_a_contrast_are_of_the_autoencoder_and_what_is_read(contrasts):
    _, inputs = contrasts
    changes = {
        "resamples": ({"num_bootstrap": 5}, inputs),
        "seed": ({"seed": 1}, inputs),
        "protocol": ({"protocol": "published"}, inputs),
        "names": ({}, {role.replace("wide/0", "wide/x"): key for role, key in inputs.items()}),
        "another autoencoder": ({}, {**inputs, "features/narrow/0": "x.y"}),
        "its features": ({}, {**inputs, "features/wide/0": "x.y"}),
    }
    both = {"measures/wide", "subjects/wide"}
    assert moved(CONTRAST, ContrastParams, inputs, sorted(both), changes) == {
        "resamples": {"measures/wide"},
        "seed": both,
        "protocol": both,
        "names": set(),
        "another autoencoder": set(),
        "its features": both,
    }


def test_duplicated_vectors_take_their_own_cell_down(artifacts):
    table = artifacts.read_table("train.A1_mean")
    artifacts.write_table("train.twice", pa.concat_tables([table, table.slice(0, 1)]))
    task = probe_task()
    inputs = {**task.inputs, "train/P1_last_token/1": "train.twice", "test/P1_last_token/1": "test.A1_mean"}
    outputs = {**task.outputs, "measures/P1_last_token/1": "measures.twice", "directions/P1_last_token/1": "d.twice"}
    run(create(), task.model_copy(update={"inputs": inputs, "outputs": outputs}), artifacts)
    rows = artifacts.read_table("measures.twice").to_pylist()
    assert {row["status"] for row in rows} == {"failed"}
    assert "1 rows are duplicates" in rows[0]["reason"]
    assert artifacts.read_table("d.twice")["vector"].null_count == len(artifacts.read_table("d.twice"))
    assert "ok" in artifacts.read_table("measures.A1_mean")["status"].to_pylist()


def test_erased_directions_leave_less_to_probe(artifacts):
    """Across the axis of the classes they stay apart, along it they do not; LEACE leaves nothing."""
    towards = np.random.default_rng(99).normal(size=24)
    other = np.random.default_rng(1).normal(size=24)
    schema = directions_schema(24)
    for name, vector in (("along", towards), ("other", other - towards * (other @ towards) / (towards @ towards))):
        artifacts.write_table(name, table_from_rows([{"direction_id": "0", "vector": vector.tolist()}], schema))
    inputs = {f"passages/{split}": f"passages.{split}" for split in ("train", "test")}
    inputs |= {f"{split}/A1_mean/2": f"{split}.A1_mean" for split in ("train", "test")}
    inputs |= {"erased/along": "along", "erased/other": "other"}
    params = PARAMS | {"sensitivity_c": [], "num_permutations": 1, "num_control_words": 1}
    task = Task(kind=ERASE.kind, inputs=inputs, outputs={"measures": "left"}, params=params)
    create().handlers[ERASE.kind](task, TaskIO(task, artifacts))
    rows = artifacts.read_table("left").to_pylist()
    left = {json.loads(row["params"])["erased"]: row["value"] for row in rows}
    assert list(left) == ["nothing", "along", "other", "leace"] and {row["n"] for row in rows} == {60}
    assert min(left["nothing"], left["other"]) > 0.7
    assert max(left["along"], left["leace"]) < 0.6
    of_test = {role: key for role, key in inputs.items() if "test" in role}
    task = Task(kind=ERASE.kind, inputs=of_test, outputs={"measures": "whole"}, params=params)
    create().handlers[ERASE.kind](task, TaskIO(task, artifacts))
    (row,) = artifacts.read_table("whole").to_pylist()  # LEACE is fitted on train passages
    assert (json.loads(row["params"])["erased"], row["value"]) == ("nothing", left["nothing"])
