"""Rows of architectures say what the code of the installed vLLM and Transformers does."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tests.zoo import architectures
from transformers import AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from poolbench_steerer.plugin.architectures import ARCHITECTURES
from poolbench_steerer.plugin.decoder import Decoder, adds_second


def test_every_row_has_a_small_model():
    assert list(ARCHITECTURES) == list(architectures()) == sorted(ARCHITECTURES)


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_row_is_what_its_code_says(model_type):
    row = ARCHITECTURES[model_type]
    file = vllm_files().get(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    if file is None:  # vLLM runs the code of Transformers
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(architectures()[model_type].config)
        decoder = Decoder(model, model.config)
        assert isinstance(getattr(decoder.parent, row.norm), torch.nn.Module)
        forwards = [textwrap.dedent(inspect.getsource(type(decoder.blocks[0]).forward))]
    else:
        assert f"self.{row.norm} = " in "".join(path.read_text("utf-8") for path in with_imported(file))
        forwards = list(block_forwards(file))
    assert [block_returns(forward) for forward in forwards] == [row.block] * len(forwards) != []


@cache
def vllm_files() -> dict[str, Path]:
    """Return vLLM's own models: the file of each architecture."""
    spec = find_spec("vllm")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "model_executor" / "models"
    (models,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((folder / "registry.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_TEXT_GENERATION_MODELS"
    )
    return {architecture: folder / f"{module}.py" for architecture, (module, _) in models.items()}


def with_imported(file: Path) -> Iterator[Path]:
    """Yield a file of a model, and the files of other models that it imports."""
    yield file
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            path = file.parent / f"{node.module.removeprefix('vllm.model_executor.models.')}.py"
            if path.is_file() and path.stem not in ("interfaces", "utils"):
                yield path


def block_forwards(file: Path) -> Iterator[str]:
    """Yield the code of the blocks of a file, or of the file that its model comes from."""
    for path in with_imported(file):
        lines = path.read_text("utf-8").splitlines()
        forwards = [
            textwrap.dedent("\n".join(lines[function.lineno - 1 : function.end_lineno]))
            for block in ast.parse("\n".join(lines)).body
            if isinstance(block, ast.ClassDef) and block.name.endswith(("DecoderLayer", "Block"))
            for function in block.body
            if isinstance(function, ast.FunctionDef) and function.name == "forward"
        ]
        forwards = [forward for forward in forwards if "attn" in forward or "attention" in forward]
        if forwards:
            return (yield from forwards)


def block_returns(forward: str) -> str:
    """Return what the code of a block returns, in the words of a row."""
    returned = [node.value for node in ast.walk(ast.parse(forward)) if isinstance(node, ast.Return)]
    if not any(isinstance(value, ast.Tuple) for value in returned):
        return "tensor"
    return "first" if adds_second(forward) else "sum"
