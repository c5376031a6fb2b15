"""Files of steering vectors: written for and by the readers of other tools, and refused where they are of no use."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from poolbench.directions.vector_files import encode_gguf, read_vector_file
from poolbench.errors import InputError

WIDTH = 5
VECTORS = {3: np.float32([0.6, -0.8, 0, 1e-7, 3]), 11: np.float32([1, 2, 3, 4, 5])}


def write_gguf(path: Path, tensors: dict[str, Any], architecture: str = "controlvector") -> Path:
    """Write a file as repeng and EasySteer do, with the package of llama.cpp."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_string("controlvector.model_hint", "llama")
    writer.add_uint32("controlvector.layer_count", len(tensors))
    writer.add_array("an.array", ["a", "b"])
    writer.add_array("numbers", [1, 2, 3])
    return finished(writer, path, tensors)


def finished(writer: gguf.GGUFWriter, path: Path, tensors: dict[str, Any], **options: Any) -> Path:
    """Write the file with these tensors."""
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor, **options)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_equals_the_bytes_of_the_package_of_llama_cpp(tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    writer = gguf.GGUFWriter(str(path), "controlvector")
    writer.add_string("controlvector.model_hint", "llama")
    writer.add_uint32("controlvector.layer_count", 2)
    finished(writer, path, {f"direction.{layer}": vector for layer, vector in VECTORS.items()})
    ours = encode_gguf(VECTORS, {"controlvector.model_hint": "llama", "controlvector.layer_count": 2})
    assert ours == path.read_bytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_gguf_of_other_tools_is_read(tmp_path: Path, dtype: Any) -> None:
    tensors = {f"direction.{layer}": vector.astype(dtype) for layer, vector in VECTORS.items()}
    file = read_vector_file(write_gguf(tmp_path / "v.gguf", tensors))
    assert (file.format, file.architecture, list(file.vectors)) == ("gguf", "llama", [3, 11])
    for layer, vector in VECTORS.items():
        assert np.array_equal(file.vectors[layer], vector.astype(dtype).astype(np.float32))


def test_bfloat16_of_gguf_is_read(tmp_path: Path) -> None:
    rounded = torch.tensor(VECTORS[3]).bfloat16()
    path = tmp_path / "v.gguf"
    writer = gguf.GGUFWriter(str(path), "controlvector")
    upper = rounded.view(torch.uint16).numpy().view(np.uint8)
    finished(writer, path, {"direction.3": upper}, raw_dtype=gguf.GGMLQuantizationType.BF16)
    assert np.array_equal(read_vector_file(path).vectors[3], rounded.float().numpy())


def test_other_formats_are_read_by_their_content(tmp_path: Path) -> None:
    vector = VECTORS[3]
    np.save(tmp_path / "flat.npy", vector.astype(">f8"))
    np.save(tmp_path / "row.npy", vector[None])
    save_file({"v": vector}, tmp_path / "one.safetensors")
    torch.save(torch.tensor(vector).bfloat16(), tmp_path / "one.pt")
    for name, expected in (
        ("flat.npy", vector), ("row.npy", vector), ("one.safetensors", vector),
        ("one.pt", torch.tensor(vector).bfloat16().float().numpy()),
    ):  # fmt: skip
        file = read_vector_file(tmp_path / name)
        assert list(file.vectors) == [None], name
        assert np.array_equal(file.at(7).vectors[7], expected), name
        with pytest.raises(InputError, match="names no layer; give --layer"):
            file.at(None)
    save_file({f"direction.{layer}": vector for layer, vector in VECTORS.items()}, tmp_path / "layers.safetensors")
    torch.save({layer: torch.tensor(vector) for layer, vector in VECTORS.items()}, tmp_path / "layers.bin")
    for name in ("layers.safetensors", "layers.bin"):
        file = read_vector_file(tmp_path / name)
        assert list(file.at(None).vectors) == [3, 11]
        assert list(file.at(11).vectors) == [11]
        with pytest.raises(InputError, match="no vector of layer 4; it has 3, 11"):
            file.at(4)


@pytest.mark.parametrize("form", ["npz", "pt", "safetensors"])
def test_the_place_of_a_vector_is_read_by_one_rule(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"v.{form}"

    def write(names: list[str], **facts: Any) -> Path:
        if form == "npz":
            np.savez(path, **dict.fromkeys(names, VECTORS[3]), **{name: np.array(fact) for name, fact in facts.items()})
        elif form == "pt":
            torch.save(dict.fromkeys(names, torch.tensor(VECTORS[3])) | facts, path)
        else:
            metadata = {name: str(fact) for name, fact in facts.items()}
            save_file(dict.fromkeys(names, VECTORS[3]), path, metadata)
        return path

    for names, facts, layers in (
        (["v"], {}, [None]),
        (["v"], {"layer": 3, "model": "gemma-2-2b", "label": "dinosaurs"}, [3]),
        (["v"], {"hook_name": "blocks.4.hook_resid_pre", "layer": 4}, [3]),
        (["v"], {"layer": 4, "hook_type": "hook_resid_post"}, [4]),
        (["blocks.4.hook_resid_pre", "direction.11"], {}, [3, 11]),
        (["model.layers.3"], {}, [3]),
        (["5", "3"], {}, [3, 5]),
    ):
        file = read_vector_file(write(names, **facts))
        assert (file.format, list(file.vectors)) == (form, layers)
        assert (file.model, file.label) == (facts.get("model"), facts.get("label"))
        assert all(np.array_equal(vector, VECTORS[3]) for vector in file.vectors.values())
    for names, facts, reason in (
        (["blocks.3.hook_mlp_out"], {}, "only the residual stream"),
        (["v"], {"hook_name": "blocks.3.attn.hook_z"}, "only the residual stream"),
        (["blocks.0.hook_resid_pre"], {}, "the embedding"),
        (["v"], {"layer": "last"}, "the layer of the vector is 'last'"),
        (["3", "direction.3"], {}, "several vectors of layer 3"),
        (["a", "b"], {"layer": 3}, "holds 'a', 'b'; one tensor"),
    ):
        with pytest.raises(InputError, match=reason):
            read_vector_file(write(names, **facts))


def test_records_of_neuronpedia_are_read_at_their_hook(tmp_path: Path) -> None:
    """The request of vector_request.py and the answers of `new` and `get` of hijohnnylin/neuronpedia."""
    numbers = VECTORS[3].tolist()
    request = {"modelId": "gemma-2-2b", "layerNumber": 20, "hookType": "hook_resid_pre", "vector": numbers,
               "vectorDefaultSteerStrength": 44, "vectorLabel": "dinosaurs"}  # fmt: skip
    answer = {"message": "Success", "vector": {"modelId": "gemma-2-2b", "source": "20-neuronpedia-resid-post",
              "index": "1", "label": "dinosaurs", "hookName": "blocks.20.hook_resid_post",
              "values": numbers}}  # fmt: skip
    record = {"modelId": "gemma-2-2b", "layer": "20-x", "index": "1", "vectorLabel": "dinosaurs",
              "hookName": "blocks.20.hook_resid_post", "vector": numbers}  # fmt: skip
    for content, layer in ((request, 19), (answer, 20), ({"vector": record}, 20), (record, 20)):
        path = tmp_path / "v.json"
        path.write_text(json.dumps(content, indent=1))
        file = read_vector_file(path)
        assert (file.format, file.model, file.label) == ("neuronpedia", "gemma-2-2b", "dinosaurs")
        assert list(file.vectors) == [layer]
        assert np.array_equal(file.vectors[layer], VECTORS[3])
    path.write_text(json.dumps({**request, "layerNumber": 0}))
    with pytest.raises(InputError, match="the embedding; a block's output is needed"):
        read_vector_file(path)
    path.write_text(json.dumps({**request, "hookType": "hook_mlp_out"}))
    with pytest.raises(InputError, match=r"the vector reads 'blocks\.20\.hook_mlp_out'; only the residual stream"):
        read_vector_file(path)


class Thing:
    """An object that only a pickle holds."""


def test_what_cannot_be_steered_with_is_refused_in_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "matrix.npy", np.ones((6, WIDTH)))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "scalar.npy", np.float32(3))
    np.savez(tmp_path / "objects.npz", a=np.array([{"a": 1}], dtype=object))
    np.save(tmp_path / "nan.npy", np.array([1, np.nan]))
    np.save(tmp_path / "huge.npy", np.array([1e300, 1.0]))  # infinite in float32
    np.save(tmp_path / "zero.npy", np.zeros(WIDTH))
    torch.save(Thing(), tmp_path / "thing.pt")
    torch.save({"a": 1}, tmp_path / "numbers.pt")
    save_file({"a": VECTORS[3], "b": VECTORS[3]}, tmp_path / "two.safetensors")
    save_file(
        {"direction.1": np.ones(2, np.float32), "direction.2": np.ones(3, np.float32)}, tmp_path / "w.safetensors"
    )
    (tmp_path / "cut.npz").write_bytes((tmp_path / "objects.npz").read_bytes()[:-30])
    (tmp_path / "broken.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{")
    (tmp_path / "text.txt").write_text("0.1 0.2")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    (tmp_path / "other.json").write_text('{"a": [1]}')
    (tmp_path / "words.json").write_text('{"vector": ["a"], "hookName": "blocks.1.hook_resid_post"}')
    whole = write_gguf(tmp_path / "whole.gguf", {"direction.3": VECTORS[3]}).read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-30])
    (tmp_path / "head.gguf").write_bytes(whole[:40])
    (tmp_path / "old.gguf").write_bytes(b"GGUF\1\0\0\0" + whole[8:])
    write_gguf(tmp_path / "model.gguf", {"token_embd.weight": VECTORS[3]}, "llama")
    write_gguf(tmp_path / "tensor.gguf", {"bias.3": VECTORS[3]})
    write_gguf(tmp_path / "matrix.gguf", {"direction.3": np.ones((2, WIDTH), np.float32)})
    write_gguf(tmp_path / "none.gguf", {})
    write_gguf(tmp_path / "twice.gguf", {"direction.3": VECTORS[3], "direction.03": VECTORS[3]})
    refusals = {
        "matrix.npy": r"float64 of shape \(6, 5\); numbers of shape \[width\]",
        "objects.npy": "it holds Python objects",
        "objects.npz": "it holds Python objects",
        "cut.npz": "cannot be read as tensors alone",
        "scalar.npy": r"of shape \(\)",
        "nan.npy": "holds NaN or infinity",
        "huge.npy": "holds NaN or infinity",
        "zero.npy": "is zero; it has no direction",
        "thing.pt": "cannot be read as tensors alone",
        "numbers.pt": "holds no tensors by name",
        "two.safetensors": "holds 'a', 'b'; one tensor, or one for each layer",
        "w.safetensors": "several widths",
        "broken.safetensors": "not a safetensors file",
        "text.txt": "format of the file is unknown; read are GGUF",
        "empty": "format of the file is unknown",
        "folder": "the folder has no vector.safetensors",
        "other.json": "no list of numbers called 'vector'",
        "words.json": "no list of numbers called 'vector'",
        "absent.gguf": "cannot be read: No such file",
        "cut.gguf": "damaged",
        "head.gguf": "damaged",
        "old.gguf": "version 1; versions 2 and 3",
        "model.gguf": "architecture 'llama'; a control vector has 'controlvector'",
        "tensor.gguf": "holds the tensor 'bias.3'",
        "matrix.gguf": r"direction.3 has the shape \(5, 2\)",
        "none.gguf": "holds no vector",
        "twice.gguf": "several vectors of one layer",
    }
    for name, message in refusals.items():
        with pytest.raises(InputError, match=message) as caught:
            read_vector_file(tmp_path / name)
        assert "\n" not in str(caught.value) and str(caught.value).startswith(str(tmp_path / name))


def test_no_damage_to_a_gguf_file_is_more_than_a_line(tmp_path: Path) -> None:
    """Every byte of the head set to 255 in turn: a huge count must neither hang nor fill the memory."""
    whole = bytearray(write_gguf(tmp_path / "v.gguf", {"direction.3": VECTORS[3]}).read_bytes())
    path, refused = tmp_path / "damaged.gguf", 0
    for at in range(4, len(whole) - 32):
        path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        try:
            read_vector_file(path)
        except InputError:
            refused += 1
    assert refused > 50
