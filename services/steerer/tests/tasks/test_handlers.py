"""Queue handlers on real artifacts in a folder store."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.contracts.tables import (
    CALIBRATION,
    CHAT_PROMPTS,
    FLUENCY,
    IMPORTED_TEXTS,
    PROMPTS,
    SCORES,
    TEXTS,
    directions_schema,
    table_from_rows,
)
from poolbench.contracts.tasks import Task
from poolbench.errors import ConfigError
from poolbench.statistics.response import split_openings
from poolbench.storage import open_store
from poolbench.storage.artifacts import Artifacts
from poolbench.worker.taskio import TaskIO
from poolbench_steerer import tasks
from poolbench_steerer.errors import NoEffectError, StrengthError, VectorError

pytestmark = pytest.mark.lane(name="engines")

OPENINGS = ["The river runs", "Nobody saw the fox", "If the wind turns"]


@pytest.fixture
def artifacts(tmp_path: Path, unit_vectors: np.ndarray) -> Artifacts:
    """A store with prompts, calibration and two direction artifacts (C1, C3; two nulls and a null row)."""
    store = Artifacts(open_store(str(tmp_path / "store")))
    store.write_table("prompts", rows([{"prompt_id": f"p{i}", "text": t} for i, t in enumerate(OPENINGS)], PROMPTS))
    norms = [{"layer": layer, "median_residual_norm": 50.0 + layer, "num_tokens": 9} for layer in range(6)]
    store.write_table("calibration", rows(norms, CALIBRATION))
    schema = directions_schema(unit_vectors.shape[1])
    store.write_table("a1", rows([direction("C1", unit_vectors[0]), direction("C3", unit_vectors[1])], schema))
    nulls = [
        direction("null_000", unit_vectors[2]),
        direction("null_001", None),
        direction("null_002", unit_vectors[3]),
    ]
    store.write_table("nulls", rows(nulls, schema))
    return store


def rows(values: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    return table_from_rows(values, schema)


def direction(name: str, vector: np.ndarray | None) -> dict[str, Any]:
    if vector is None:
        return {"direction_id": name, "status": "non_finite", "reason": "pairs cancel"}
    return {"direction_id": name, "vector": vector.tolist(), "raw_norm": 1.0}


def run(host: Any, artifacts: Artifacts, handler: Any, **task: Any) -> None:
    made = Task(**task)
    handler(host, made, TaskIO(made, artifacts))


def generate_task(tiny_model: Path, **changes: Any) -> dict[str, Any]:
    task = {
        "kind": "steerer.generate",
        "inputs": {"prompts": "prompts", "calibration": "calibration", "directions/causation": "a1"},
        "outputs": {"texts/causation": "texts.a1", "fluency/causation": "fluency.a1"},
        "params": {
            "model": str(tiny_model),
            "layer": 2,
            "strengths": [0.5, 2.0],
            "max_tokens": 8,
            "ignore_eos": True,
        },
    }
    task["params"] |= changes.pop("params", {})
    return task | changes


def test_steered_texts_and_fluency(host, tiny_model, artifacts):
    run(host, artifacts, tasks.generate, **generate_task(tiny_model))
    texts, fluency = artifacts.read_table("texts.a1"), artifacts.read_table("fluency.a1")
    assert texts.schema.equals(TEXTS)
    assert fluency.schema.equals(FLUENCY)
    assert texts.column("alpha").to_pylist() == [26.0] * 3 + [104.0] * 3
    assert set(texts.column("direction_key").to_pylist()) == {"causation/C1"}
    assert texts.column("positions_changed").to_pylist() == texts.column("positions_expected").to_pylist() == [8] * 6
    assert texts.column("text_id").to_pylist() == fluency.column("text_id").to_pylist()
    assert texts.column("num_tokens").to_pylist() == fluency.column("num_tokens").to_pylist()
    assert min(fluency.column("mean_nll").to_pylist()) > 0
    assert len(set(texts.column("vector_hash").to_pylist())) == 1


def test_nulls_beside_a_direction_and_unusable_rows_named(host, tiny_model, artifacts):
    task = generate_task(
        tiny_model,
        inputs={"prompts": "prompts", "directions/n": "nulls"},
        outputs={"texts/n": "texts.n", "fluency/n": "fluency.n"},
        params={"direction_ids": "all", "alpha_unit": "absolute", "strengths": [30.0]},
    )
    run(host, artifacts, tasks.generate, **task)
    texts = artifacts.read_table("texts.n")
    assert texts.num_rows == 6
    assert set(texts.column("alpha").to_pylist()) == {30.0}
    skipped = json.loads(artifacts.manifest("texts.n").meta["skipped_directions"])
    assert skipped == {"null_001": "pairs cancel"}


@pytest.mark.parametrize(
    ("size", "strength", "error"), [(1e10, 1e4, StrengthError), (1e16, 1.0, VectorError), (1e-8, 1e-9, NoEffectError)]
)
def test_a_change_that_is_too_large_or_too_small_is_the_tasks_own_error(
    host, tiny_model, artifacts, unit_vectors, size, strength, error
):
    schema = directions_schema(unit_vectors.shape[1])
    artifacts.write_table("scaled", rows([direction("C1", unit_vectors[0] * size)], schema))
    task = generate_task(
        tiny_model,
        inputs={"prompts": "prompts", "directions/s": "scaled"},
        outputs={"texts/s": "texts.s", "fluency/s": "fluency.s"},
        params={"alpha_unit": "absolute", "strengths": [strength]},
    )
    with pytest.raises(error):
        run(host, artifacts, tasks.generate, **task)
    assert not artifacts.exists("texts.s")


def test_unsteered_texts(host, tiny_model, artifacts):
    task = generate_task(
        tiny_model,
        inputs={"prompts": "prompts"},
        outputs={"texts/unsteered": "texts.u", "fluency/unsteered": "fluency.u"},
        params={"strengths": []},
    )
    run(host, artifacts, tasks.generate, **task)
    texts = artifacts.read_table("texts.u")
    assert texts.column("strength").to_pylist() == [0.0] * 3
    assert texts.column("positions_expected").to_pylist() == [0] * 3
    assert texts.column("vector_hash").null_count == 3


def test_prompts_with_an_instruction_are_replies_in_the_models_own_template(host, tiny_model, artifacts):
    asked = [{"prompt_id": f"p{i}", "text": t, "instruction": "Be brief."} for i, t in enumerate(OPENINGS)]
    artifacts.write_table("asked", rows(asked, CHAT_PROMPTS))
    template = f"<bos>user: Be brief.\nassistant: {OPENINGS[0]}"  # the reply goes on after the opening
    plain = [{"prompt_id": "p0", "text": template.removeprefix("<bos>")}]
    artifacts.write_table("plain", rows(plain, PROMPTS))
    for name in ("asked", "plain"):
        outputs = {"texts/unsteered": f"texts.{name}", "fluency/unsteered": f"fluency.{name}"}
        task = generate_task(tiny_model, inputs={"prompts": name}, outputs=outputs, params={"strengths": []})
        run(host, artifacts, tasks.generate, **task)
    replies, same = (artifacts.read_table(f"texts.{name}") for name in ("asked", "plain"))
    assert replies["text"][0] == same["text"][0] and replies.num_rows == 3
    assert replies["prompt"][0].as_py() == f"Be brief.\n\n{OPENINGS[0]}"


def test_only_missing_outputs_are_made(host, tiny_model, artifacts):
    run(host, artifacts, tasks.generate, **generate_task(tiny_model))
    first = artifacts.manifest("texts.a1")
    artifacts.delete("fluency.a1")
    run(host, artifacts, tasks.generate, **generate_task(tiny_model))
    assert artifacts.manifest("texts.a1").attempt == first.attempt
    assert artifacts.exists("fluency.a1")


@pytest.mark.parametrize(("nll", "strengths"), [(2.0, {1.0, 2.0}), (9.0, {2.0})], ids=["fluent", "not fluent"])
def test_the_second_half_is_steered_where_the_scores_of_the_first_say_and_as_whole_runs_do(
    host, tiny_model, artifacts, nll, strengths
):
    openings = [{"prompt_id": f"p{number}", "text": f"{OPENINGS[number % 3]} {number}"} for number in range(8)]
    halves = split_openings([row["prompt_id"] for row in openings], seed=3)
    for name, names in {"all": [*halves[0], *halves[1]], "first": halves[0], "second": halves[1]}.items():
        artifacts.write_table(name, rows([row for row in openings if row["prompt_id"] in names], PROMPTS))

    def generated(prompts, name, directions):
        inputs = {"prompts": prompts, "calibration": "calibration", **directions}
        outputs = {f"texts/{name}": f"texts.{prompts}.{name}", f"fluency/{name}": f"fluency.{prompts}.{name}"}
        levels = [0.5, 1.0, 2.0] if directions else []
        task = generate_task(tiny_model, inputs=inputs, outputs=outputs, params={"strengths": levels})
        run(host, artifacts, tasks.generate, **task)
        return artifacts.read_table(outputs[f"texts/{name}"])

    along = {"directions/causation": "a1"}
    whole, first = generated("all", "causation", along), generated("first", "causation", along)
    score_of, nll_of = {0.0: 0.1, 0.5: 0.3, 1.0: 0.8, 2.0: 0.6}, {0.0: 2.0, 0.5: nll, 1.0: nll, 2.0: nll}
    inputs = {"prompts": "second", "calibration": "calibration", **along}
    for name, texts in (("causation", first), ("unsteered", generated("all", "unsteered", {}))):
        told = texts.select(["text_id", "strength", "num_tokens"]).to_pylist()
        scores = [{"text_id": row["text_id"], "scorer": "x", "score": score_of[row["strength"]]} for row in told]
        artifacts.write_table(f"scores.{name}", rows(scores, SCORES))
        fluency = [{**row, "mean_nll": nll_of[row["strength"]]} for row in told]
        artifacts.write_table(f"told.{name}", rows(fluency, FLUENCY))
        key = "texts.first.causation" if name == "causation" else "texts.all.unsteered"
        inputs |= {f"texts/{name}": key, f"scores/{name}": f"scores.{name}", f"fluency/{name}": f"told.{name}"}
    task = generate_task(tiny_model, inputs=inputs, params={"strengths": [2.0], "scorer": "x", "split_seed": 3})
    run(host, artifacts, tasks.complete, **task | {"kind": "steerer.complete"})
    texts = {row["text_id"]: row for row in artifacts.read_table("texts.a1").to_pylist()}
    by_id = {row["text_id"]: row for row in whole.to_pylist()}
    assert texts == {name: by_id[name] for name in texts}
    read = [(row["prompt_id"], row["strength"]) for row in texts.values()]
    assert sorted(read) == sorted(
        [*((name, level) for name in halves[0] for level in (0.5, 1.0, 2.0))]
        + [(name, level) for name in halves[1] for level in strengths]
    )
    fluency = artifacts.read_table("fluency.a1").to_pylist()
    assert [row["text_id"] for row in fluency] == list(texts)


def test_what_a_name_holds_is_erased_together_as_with_hooks_in_transformers(host, tiny_model, artifacts):
    """Two directions that are not orthogonal, at every position of the layer; shares of it are strengths."""
    params = {"direction_ids": ["C1", "C3"], "operation": "erase", "alpha_unit": "absolute", "positions": "all"}
    params |= {"strengths": [1.0]}
    run(host, artifacts, tasks.generate, **generate_task(tiny_model, params=params))
    texts = artifacts.read_table("texts.a1").to_pylist()
    assert {(row["direction_key"], row["strength"], row["alpha"]) for row in texts} == {("causation", 1.0, 1.0)}
    vectors = np.array(artifacts.read_table("a1")["vector"].to_pylist())
    basis = torch.tensor(np.linalg.qr(vectors.T)[0].T, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)

    def erase(_module: Any, _inputs: Any, hidden: torch.Tensor) -> torch.Tensor:
        return hidden - hidden @ basis.T @ basis

    model.model.layers[2].register_forward_hook(erase)
    for row, opening in zip(texts, OPENINGS, strict=True):
        ids = tokenizer(opening, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            made = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False, pad_token_id=1)
        assert row["token_ids"] == made[0, ids.shape[1] :].tolist()
    with pytest.raises(ConfigError, match="alpha_unit must be absolute"):
        run(host, artifacts, tasks.generate, **generate_task(tiny_model, params={"operation": "erase"}))


def test_imported_texts_have_the_likelihood_that_transformers_gives_them(host, tiny_model, artifacts):
    imported = [
        {"text_id": text, "prompt_id": f"p{number}", "direction_key": "A1_mean/C1", "strength": 0.5}
        | {"prompt": OPENINGS[number], "text": text}
        for number, text in enumerate([" past the old mill", " in the snow", ""])
    ]
    artifacts.write_table("theirs", rows(imported, IMPORTED_TEXTS))
    task = {
        "kind": "steerer.read",
        "inputs": {"imported/causation": "theirs"},
        "outputs": {"texts/causation": "texts.i", "fluency/causation": "fluency.i"},
        "params": {"model": str(tiny_model), "layer": 2},
    }
    run(host, artifacts, tasks.read_texts, **task)
    texts, fluency = (artifacts.read_table(key).to_pylist() for key in ("texts.i", "fluency.i"))
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    for row, likelihood in zip(texts[:2], fluency, strict=False):
        prompt, reply = (
            tokenizer(row["prompt"])["input_ids"],
            tokenizer(row["text"], add_special_tokens=False)["input_ids"],
        )
        with torch.no_grad():
            logits = model(torch.tensor([prompt + reply])).logits[0, len(prompt) - 1 : -1]
        expected = torch.nn.functional.cross_entropy(logits, torch.tensor(reply))
        assert likelihood["mean_nll"] == pytest.approx(expected.item(), abs=1e-3) and row["token_ids"] == reply
        assert (row["strength"], row["layer"], row["direction_key"]) == (0.5, 2, "A1_mean/C1")
    assert texts[2]["num_tokens"] == 0 and fluency[2]["mean_nll"] is None
    first = artifacts.manifest("texts.i").attempt
    artifacts.delete("fluency.i")
    run(host, artifacts, tasks.read_texts, **task)  # only what is missing is written again
    assert artifacts.manifest("texts.i").attempt == first
    assert artifacts.read_table("fluency.i").to_pylist() == fluency
    assert {row["vector_hash"] for row in texts} == {None}


def test_continuations_start_from_the_first_half(host, tiny_model, artifacts):
    passages = [
        {"passage_id": f"{label}{i}", "label": label, "text": f"{OPENINGS[i]} and then some more words came."}
        for label in (0, 1)
        for i in range(3)
    ]
    artifacts.write_table("passages", pa.Table.from_pylist(passages))
    params = {
        "model": str(tiny_model),
        "num_passages": 4,
        "prompt_tokens": 9,
        "max_tokens": 6,
        "ignore_eos": True,
    }
    task = {"kind": "steerer.continue", "inputs": {"passages": "passages"}, "outputs": {"texts": "texts.c"}}
    run(host, artifacts, tasks.continue_passages, **task, params=params)
    texts = artifacts.read_table("texts.c")
    assert texts.column("prompt_id").to_pylist() == ["10", "11", "00", "01"]
    assert texts.column("num_tokens").to_pylist() == [6] * 4
    assert all(p and OPENINGS[i % 2].startswith(p[:4]) for i, p in enumerate(texts.column("prompt").to_pylist()))


def test_a_sampled_text_is_the_same_alone_and_among_others(host, tiny_model, artifacts):
    """One strength and opening alone, and the same in a batch with other strengths, openings and directions."""
    artifacts.write_table("few", artifacts.read_table("prompts").slice(1, 1))

    def texts(prompts: str, key: str, **changes: Any) -> dict[tuple[str, str, float, int], list[int]]:
        inputs = {"prompts": prompts, "calibration": "calibration", "directions/x": "a1"}
        outputs = {"texts/x": f"texts.{key}", "fluency/x": f"fluency.{key}"}
        params = {"strengths": [0.5], "temperature": 0.9, "num_samples": 2, "seed": 11, **changes}
        run(host, artifacts, tasks.generate, **generate_task(tiny_model, inputs=inputs, outputs=outputs, params=params))
        table = artifacts.read_table(f"texts.{key}").to_pylist()
        return {(r["direction_key"], r["prompt_id"], r["strength"], r["sample"]): r["token_ids"] for r in table}

    alone = texts("few", "alone")
    crowd = texts("prompts", "crowd", direction_ids="all", strengths=[0.1, 0.5, 1.0])
    assert len(alone) == 2 and len(crowd) == 2 * 3 * 3 * 2
    assert {key: crowd[key] for key in alone} == alone
    assert len({tuple(ids) for ids in alone.values()}) == 2  # samples differ
    assert texts("few", "reseeded", seed=12) != alone
