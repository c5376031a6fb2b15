"""`vectors`: from a run into files of other tools and back, with a card, and refused where it does not fit."""

import importlib.util
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from driver.tests import vector_cards
from driver.tests.conftest import Driver
from driver.tests.run_folders import assembled
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import ModelRef, asset_path, resolve_model
from poolbench.contracts import tables as t
from poolbench.directions.vector_files import encode_gguf, read_vector_file
from poolbench.errors import InputError
from poolbench.steps.roles import Cell
from poolbench_driver.models import ModelInfo, describe
from poolbench_driver.records import Run
from poolbench_driver.records.folder import write_model
from poolbench_driver.records.record import RunRecords, encode_keys
from poolbench_driver.vectors.card import Source, Strength, Vector
from poolbench_driver.vectors.exporting import FORMATS, export_vector
from poolbench_driver.vectors.importing import import_vector
from poolbench_driver.vectors.of_run import vector_of_run

CALIBRATION = "extractor.calibrate.0123"


@pytest.fixture(scope="module")
def demo() -> ModelInfo:
    return describe(resolve_model("demo"), None)


def vector_of(model: ModelInfo, *layers: int) -> Vector:
    """Return a vector of a model that a run has not measured."""
    of_run = {"strategy": "A1_mean", "construction": "C1", "strength": Strength(reason="not measured")}
    return vector_cards.vector_of(*layers, model_revision=model.ref.revision, architecture="llama", **of_run)


@pytest.fixture
def run(steered: Any, tmp_path: Path) -> tuple[Any, Run]:
    """A finished run with its directions, its record in the store, and the norms that it measured."""
    made = steered().write(lambda key, opening, strength, scorer: 0.2 + 0.01 * opening + 0.5 * strength)
    folder = assembled(made, tmp_path / "runs")
    write_model(folder, made.plan.scope.model)
    rows = [{"layer": layer, "median_residual_norm": 10.0 + layer, "num_tokens": 9} for layer in range(6)]
    made.artifacts.write_table(CALIBRATION, t.table_from_rows(rows, t.CALIBRATION), producer={})
    made.artifacts.store.put(f"runs/{folder.id}/keys.json.gz", encode_keys([CALIBRATION]))
    assert RunRecords(made.artifacts.store).keys(folder.id) == {CALIBRATION}
    return made, folder


def test_a_direction_of_a_run_becomes_a_folder_with_what_was_measured(run: Any, cli: Driver, tmp_path: Path) -> None:
    made, folder = run
    options = ("--run", "latest", "--runs", str(tmp_path / "runs"), "--concept", "contrast", "--strategy", "A1_mean")
    output = tmp_path / "v"
    done = cli("vectors", "export", *options, "--format", "poolbench", "--output", str(output))
    assert done.returncode == 0 and done.stderr.startswith("use it: ")
    vector = Vector.load(output)
    key = made.plan.probes.concepts["contrast"].directions[Cell("A1_mean", 4)]
    stored = {row["direction_id"]: row["vector"] for row in made.artifacts.read_table(key).to_pylist()}
    tensors = load_file(output / "vector.safetensors")
    assert list(tensors) == ["direction.4"]  # the layer that the run steered at
    assert np.array_equal(tensors["direction.4"], np.float32(stored["C1"]))
    card = vector.card
    assert (card.name, card.model, card.model_revision) == ("demo+contrast", "demo", "local-0")
    assert (card.width, card.num_blocks, card.layers) == (4, 6, (4,))
    assert (card.strategy, card.construction) == ("A1_mean", "C1")
    assert card.apply.residual_norms == {4: 14.0}
    assert (card.source.run, card.source.artifact, card.licence) == (folder.id, key, "apache-2.0")
    (best,) = folder.rows("results", metric="d2.best_strength", strategy="A1_mean", protocol="corrected")
    assert card.strength.recommended == best["value"] is not None
    assert card.strength.safe_high == 0.5
    measures = {measure.name: measure for measure in card.measures}
    (gain,) = folder.rows("results", metric="d2.best_gain", strategy="A1_mean", protocol="corrected")
    measure = measures["d2.best_gain"]  # of six openings, three are read
    assert (measure.value, measure.ci_low, measure.n) == (gain["value"], gain["ci_low"], 3)
    assert card.source.cell == gain["cell_id"]
    assert {"d3.robust_ld/causation", "d3.robust_lc/negation_density"} <= measures.keys()
    nulls = [measure for measure in card.measures if measure.value is None]
    assert all(measure.reason and measure.status != "ok" for measure in nulls)
    as_gguf = ("--format", "gguf", "--output", str(tmp_path / "v.gguf"))
    usage = cli("vectors", "export", str(output), *as_gguf)
    assert f"v.gguf:{best['value'] * 14:.4g} --control-vector-layer-range 4 4" in usage.stderr

    shown = cli("vectors", "show", str(output)).stdout
    assert f"alpha {best['value'] * 14:.4g}" in shown and "A1_mean; construction C1" in shown
    assert json.loads(cli("vectors", "show", str(output), "--json").stdout)["version"] == 1
    of_run = ("--run", "latest", "--runs", str(tmp_path / "runs"), "--json")
    listed = json.loads(cli("vectors", "ls", str(tmp_path), *of_run).stdout)
    assert listed[0] == {
        "name": "demo+contrast", "model": "demo", "layer": [4], "strategy": "A1_mean", "construction": "C1",
        "strength": best["value"], "where": str(output),
    }  # fmt: skip
    assert {row["strategy"] for row in listed[1:]} == {"A1_mean", "L5_keyword"}
    assert all(row["where"] == f"run {folder.id}" for row in listed[1:])
    second = (*options, "--construction", "C2", "--format", "poolbench", "--output", str(tmp_path / "c2"))
    assert cli("vectors", "export", *second).returncode == 0
    other = Vector.load(tmp_path / "c2")
    assert np.array_equal(other.vectors[4], np.float32(stored["C2"]))
    assert other.card.strength.recommended is None
    assert other.card.strength.reason == f"run {folder.id} did not steer along it"
    assert "d2.best_gain" not in {measure.name for measure in other.card.measures}
    probed = (*options, "--layer", "2", "--format", "poolbench", "--output", str(tmp_path / "probed"))
    assert cli("vectors", "export", *probed).returncode == 0
    measures = {measure.name: measure for measure in Vector.load(tmp_path / "probed").card.measures}
    assert (measures["d1.auroc"].value, measures["d1.auroc"].ci_high, measures["d1.auroc"].n) == (0.9, 0.95, 40)
    taken = cli("vectors", "export", *options, *second[-4:])
    assert (taken.returncode, "holds another vector" in taken.stderr) == (2, True)


def test_the_card_says_how_the_run_has_steered(steered: Any, tmp_path: Path) -> None:
    made = steered(steering={"positions": "all"}, budget={"alpha_unit": "absolute"}).write(lambda *_: 0.5)
    folder = assembled(made, tmp_path / "runs")
    write_model(folder, made.plan.scope.model)
    card = vector_of_run(folder, made.artifacts, "contrast", "A1_mean").card
    assert (card.apply.alpha_unit, card.apply.positions, card.apply.residual_norms) == ("absolute", "all", None)
    assert card.alpha(0.25, 4) == 0.25
    assert card.strength.safe_high == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--concept", "contrast", "--strategy", "P1_last"], "there are A1_mean at layer 4, L5_keyword at layer 4"),
        (["--concept", "contrast", "--layer", "5"], "no direction of contrast at layer 5"),
        (["--concept", "causation"], "there are those of contrast"),
        (["--concept", "contrast", "--construction", "C9"], "has no C9; made are C1, C2"),
        (["--concept", "contrast", "--format", "onnx"], "unknown format 'onnx'"),
        ([], "--run needs --concept"),
        (["v", "--concept", "contrast"], "give VECTOR or --run, one of them"),
        (["--concept", "depression"], "sensitive concepts stay in the store"),
    ],
)
def test_what_a_run_has_not_is_one_line(
    run: Any, cli: Driver, tmp_path: Path, options: list[str], message: str
) -> None:
    settings = ["--run", "latest", "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "v")]
    done = cli("vectors", "export", "--format", "poolbench", *settings, *options)
    assert (done.returncode, message in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr
    assert not (tmp_path / "v").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_a_vector_comes_back_from_each_format_to_the_bit(name: str, demo: ModelInfo, tmp_path: Path) -> None:
    vector = vector_of(demo, 4)
    export_vector(vector, name, tmp_path / "out")
    back = import_vector(tmp_path / "out", demo)
    assert list(back.vectors) == [4]
    assert back.vectors[4].tobytes() == vector.vectors[4].tobytes()
    back.save(tmp_path / "kept")
    assert Vector.load(tmp_path / "kept").card == back.card
    if name != "neuronpedia":  # whose record has no room for the card
        assert back.card == vector.card


def test_gguf_has_the_fields_that_its_readers_need(demo: ModelInfo, tmp_path: Path) -> None:
    for name in ("gguf", "repeng", "easysteer"):
        export_vector(vector_of(demo, 2, 4), name, tmp_path / name)
        reader = gguf.GGUFReader(tmp_path / name)
        fields = {key: field.contents() for key, field in reader.fields.items()}
        assert fields["general.architecture"] == "controlvector"
        assert (fields["controlvector.model_hint"], fields["controlvector.layer_count"]) == ("llama", 2)
        assert fields.get("controlvector.method") == ("C1" if name == "easysteer" else None)
        assert [(tensor.name, tensor.data.dtype.name) for tensor in reader.tensors] == [
            ("direction.2", "float32"), ("direction.4", "float32"),
        ]  # fmt: skip
    export_vector(vector_of(demo, 0), "repeng", tmp_path / "first")
    with pytest.raises(InputError, match=r"llama\.cpp cannot steer at layer 0"):
        export_vector(vector_of(demo, 0), "gguf", tmp_path / "none")
    for name in ("neuronpedia", "transformers"):
        with pytest.raises(InputError, match=f"{name} takes a vector of one layer; give --layer, one of 2, 4"):
            export_vector(vector_of(demo, 2, 4), name, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_the_record_of_neuronpedia_is_the_request_of_its_client(demo: ModelInfo, tmp_path: Path) -> None:
    """The fields of newVectorSchema (apps/webapp/app/api/vector/new/route.tsx) and no others."""
    vector = vector_of(demo, 4)
    export_vector(vector, "neuronpedia", tmp_path / "v.json")
    assert json.loads((tmp_path / "v.json").read_text()) == {
        "modelId": "demo", "layerNumber": 4, "hookType": "hook_resid_post",
        "vector": [float(number) for number in vector.vectors[4]],
        "vectorDefaultSteerStrength": 10.0, "vectorLabel": "demo+contrast",
    }  # fmt: skip
    np.save(tmp_path / "v.npy", 3 * vector.vectors[4])
    export_vector(import_vector(tmp_path / "v.npy", demo, 4), "neuronpedia", tmp_path / "v.json")
    record = json.loads((tmp_path / "v.json").read_text())
    assert record["vectorDefaultSteerStrength"] == 1.0
    assert np.array_equal(np.float32(record["vector"]), 3 * vector.vectors[4])


def test_the_script_steers_the_block_that_its_layer_names(
    demo: ModelInfo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script in Transformers equals a hook in float64 written here, on that block and on no other."""
    vector, prompt, alpha = vector_of(demo, 3), "In the morning the driver opened the door because", 6.0
    export_vector(vector, "transformers", tmp_path / "out")
    spec = importlib.util.spec_from_file_location("steer_script", tmp_path / "out/steer.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    model, tokenizer = script.load()
    by_script = script.steered_log_probs(model, tokenizer, prompt, alpha).numpy()

    folder = asset_path("demo_lm")
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(prompt, return_tensors="pt").input_ids
    direction = torch.tensor(vector.vectors[3], dtype=torch.float64)

    def by_hook(block: int) -> np.ndarray:
        def add(module: Any, inputs: Any, output: Any) -> Any:
            return output + alpha * direction

        handle = reference.model.layers[block].register_forward_hook(add)
        with torch.no_grad():
            log_probs = reference(tokens).logits[0].log_softmax(-1)
        handle.remove()
        return log_probs.numpy()

    differences = [float(np.abs(by_script - by_hook(block)).max()) for block in range(demo.num_blocks)]
    assert differences[3] < 1e-4
    assert min(difference for block, difference in enumerate(differences) if block != 3) > 0.1
    unsteered = model(tokens).logits[0].log_softmax(-1).detach().numpy()
    assert np.abs(by_script - unsteered).max() > 0.1  # and the hook is gone again
    monkeypatch.setattr(sys, "argv", ["steer.py", prompt, str(alpha)])
    capsys.readouterr()
    runpy.run_path(str(tmp_path / "out/steer.py"), run_name="__main__")
    assert float(capsys.readouterr().out.split()[0]) == pytest.approx(float(by_script[-1].max()), abs=1e-3)


def test_a_vector_of_another_model_is_refused_unless_forced(demo: ModelInfo, tmp_path: Path) -> None:
    vector = vector_of(demo, 4)
    fields = {"model_revision": "local-other"}
    other = Vector(vector.card.model_copy(update=fields), vector.vectors)
    export_vector(other, "gguf", tmp_path / "other.gguf")
    with pytest.raises(InputError, match=r"is of demo at revision local-other, and demo is at local-\w+; --force"):
        import_vector(tmp_path / "other.gguf", demo)
    forced = import_vector(tmp_path / "other.gguf", demo, force=True)
    assert (forced.card.model_revision, forced.card.concept) == (demo.ref.revision, "contrast")
    named = Vector(vector.card.model_copy(update={"model": "owner/other", "model_revision": None}), vector.vectors)
    export_vector(named, "poolbench", tmp_path / "named")
    with pytest.raises(InputError, match="is of owner/other, not of demo"):
        import_vector(tmp_path / "named", demo)
    unknown = ModelInfo(ModelRef("owner/another", "owner/another"), demo.num_blocks, demo.width)
    with pytest.raises(InputError, match="is of owner/other, not of owner/another"):
        import_vector(tmp_path / "named", unknown)
    export_vector(named, "neuronpedia", tmp_path / "named.json")
    with pytest.raises(InputError, match="is of the model 'other', not of demo"):
        import_vector(tmp_path / "named.json", demo)
    writer = gguf.GGUFWriter(str(tmp_path / "qwen.gguf"), "controlvector")
    writer.add_string("controlvector.model_hint", "qwen2")
    writer.add_tensor("direction.4", 3 * vector.vectors[4])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(InputError, match="of a model of type 'qwen2', and demo is of llama"):
        import_vector(tmp_path / "qwen.gguf", demo)
    forced = import_vector(tmp_path / "qwen.gguf", demo, force=True)
    assert forced.card.source.norms == pytest.approx({4: 3.0}, rel=1e-6)
    assert np.array_equal(forced.vectors[4], 3 * vector.vectors[4])


@pytest.mark.parametrize("form", ["gguf", "npz", "pt", "safetensors"])
def test_the_sizes_of_layers_come_back_from_each_format(form: str, demo: ModelInfo, tmp_path: Path) -> None:
    units = vector_of(demo, 1, 2, 5).vectors
    sizes = {1: 0.5, 2: 2.0, 5: 12.0}
    tensors = {f"direction.{layer}": np.float32(sizes[layer]) * unit for layer, unit in units.items()}
    path = tmp_path / f"sizes.{form}"
    if form == "gguf":
        path.write_bytes(encode_gguf({int(name[10:]): tensor for name, tensor in tensors.items()}, {}))
    elif form == "npz":
        np.savez(path, **tensors)
    elif form == "pt":
        torch.save({name: torch.tensor(tensor) for name, tensor in tensors.items()}, path)
    else:
        save_file(tensors, path)
    vector = import_vector(path, demo)
    assert vector.card.source.norms == pytest.approx(sizes, rel=1e-6)
    assert sizes_added(vector, path) == sizes
    for name in ("poolbench", "gguf", "repeng", "easysteer"):
        export_vector(vector, name, tmp_path / name)
        back = read_vector_file(tmp_path / name).vectors
        assert {layer: numbers.tobytes() for layer, numbers in back.items()} == {
            int(label[10:]): tensor.tobytes() for label, tensor in tensors.items()
        }
        assert import_vector(tmp_path / name, demo).card == vector.card


def sizes_added(vector: Vector, path: Path) -> dict[int, float]:
    """Return the size of what is added at strength 1 by layer, the same for the file, its card and a served name."""
    from poolbench_driver.api.steering import along_vector
    from poolbench_driver.vectors.serving import served_body
    from poolbench_driver.vectors.units import unit_of

    edits = [along_vector(one, None, unit_of(one, None), "all", "demo").at(1.0)["edits"] for one in (path, vector)]
    edits.append(served_body(vector, None, 1.0, None)["steering"]["edits"])
    added = [{edit["layer"]: edit["alpha"] * float(np.linalg.norm(edit["vector"])) for edit in one} for one in edits]
    assert added[0] == added[1] == added[2]
    return {layer: round(size, 5) for layer, size in added[0].items()}


def test_a_strength_above_the_safe_range_is_said_on_the_card_and_where_it_is_used(tmp_path: Path) -> None:
    from driver.tests.vector_cards import vector_of as vector_with

    from poolbench_driver.api.steering import along_vector
    from poolbench_driver.vectors.units import unit_of

    vector = vector_with(2, strength=Strength(recommended=0.6, safe_low=0.0, safe_high=0.15))
    vector.save(tmp_path / "v")
    written = json.loads((tmp_path / "v/card.json").read_text())["strength"]
    assert written["reason"] == "the recommended strength 0.6 is above the safe range, which ends at 0.15"
    assert Vector.load(tmp_path / "v").card == vector.card
    notes = along_vector(vector, None, unit_of(vector, None), "all", "demo", [0.1, -0.2, 0.6]).notes
    assert notes == ["warning: strength -0.2, 0.6: safe up to 0.15"]
    assert not along_vector(vector, None, unit_of(vector, None), "all", "demo", [0.15]).notes
    assert not along_vector(vector, None, "absolute", "all", "demo", [5.0]).notes  # the range has another unit
    assert Strength(recommended=0.6, safe_high=0.6).reason is None


def test_what_does_not_fit_is_one_line(demo: ModelInfo, cli: Driver, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones(demo.width))
    np.save(tmp_path / "narrow.npy", np.ones(3))
    export_vector(vector_of(demo, 2), "poolbench", tmp_path / "card")
    card = json.loads((tmp_path / "card/card.json").read_text())
    (tmp_path / "card/card.json").write_text(json.dumps({**card, "vectors_sha256": "0" * 64}))
    refusals = [
        (["v.npy"], "names no layer; give --layer"),
        (["v.npy", "--layer", "6"], "layer 6 is out of range; demo has blocks 0 to 5"),
        (["v.npy", "--layer", "-1"], "layer -1 is out of range"),
        (["narrow.npy", "--layer", "2"], "the vector has width 3; demo has 256"),
        (["nowhere.npy", "--layer", "2"], "cannot be read: No such file"),
        (["card"], "is that of other numbers"),
        (["v.npy", "--layer", "2", "--output", str(tmp_path / "v.npy")], "is a file; name a folder"),
    ]
    for (name, *options), message in refusals:
        done = cli("vectors", "import", str(tmp_path / name), "--model", "demo", *options)
        assert (done.returncode, message in done.stderr, done.stderr.count("\n")) == (2, True, 1), done.stderr
    done = cli("vectors", "show", str(tmp_path / "v.npy"))
    assert "has no card that says which model and layer it is for" in done.stderr
    done = cli("vectors", "show", "nothing")
    assert (done.returncode, "neither a path nor a folder in vectors" in done.stderr) == (2, True)


def test_vectors_of_sensitive_concepts_are_not_written(demo: ModelInfo, tmp_path: Path) -> None:
    vector = vector_of(demo, 2)
    for fields in ({"concept": "depression"}, {"source": Source(tool="a test", artifact="restricted.direction.1")}):
        restricted = Vector(vector.card.model_copy(update=fields), vector.vectors)
        with pytest.raises(Exception, match="sensitive concepts stay in the store"):
            export_vector(restricted, "gguf", tmp_path / "v.gguf")
    assert not (tmp_path / "v.gguf").exists()


def test_a_damaged_card_is_left_out_of_the_list_with_its_reason(demo: ModelInfo, cli: Driver, tmp_path: Path) -> None:
    for name in ("a", "b"):
        export_vector(vector_of(demo, 2), "poolbench", tmp_path / "below" / name)
    card = (tmp_path / "below/b/card.json").read_text()
    (tmp_path / "below/b/card.json").write_text(card.replace('"width"', '"breadth"'))
    done = cli("vectors", "ls", str(tmp_path))
    assert (done.returncode, "demo+contrast" in done.stdout) == (1, True)
    assert "b/card.json: the card of the vector cannot be read at width: Field required" in done.stderr


def test_steer_takes_each_format_at_the_layer_that_it_names(demo: ModelInfo, tmp_path: Path) -> None:
    from poolbench_driver.api.steering import along_vector, opened, vectors_of
    from poolbench_driver.cli.steer import parse_edit

    vector = vector_of(demo, 2, 4)
    for name in ("gguf", "repeng", "easysteer", "poolbench"):
        export_vector(vector, name, tmp_path / name)
        edits = along_vector(tmp_path / name, None, "residual_norm", "all", "demo").at(0.3)["edits"]
        assert [(edit["layer"], edit["strength"]) for edit in edits] == [(2, 0.3), (4, 0.3)]
        assert np.array_equal(np.float32(edits[1]["vector"]), vector.vectors[4])
        assert np.array_equal(np.float32(parse_edit(f"{tmp_path / name}:4:1", "absolute")["vector"]), vector.vectors[4])
    with pytest.raises(InputError, match="`vectors import --force` takes it"):
        vectors_of(tmp_path / "poolbench", None, "planted")
    read = opened(tmp_path / "easysteer")
    assert isinstance(read, Vector) and read.card == vector.card
    assert vectors_of(vector, 4, "demo") == {4: vector.vectors[4].tolist()}
    with pytest.raises(InputError, match=r"the vector is of demo at revision .*, and planted is at .*; name the model"):
        vectors_of(vector, None, "planted")
    retrained = Vector(vector.card.model_copy(update={"model_revision": "local-000000000000"}), vector.vectors)
    with pytest.raises(InputError, match=r"the vector is of demo at revision local-0+, and demo is at"):
        vectors_of(retrained, None, "demo")
    assert read_vector_file(tmp_path / "poolbench").format == "poolbench"
