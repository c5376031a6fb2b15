"""Where the residual stream of a loaded model is: its blocks, what they return, and the norm after them."""

import ast
import inspect
import textwrap
from typing import Any

import torch

from poolbench_steerer.plugin.architectures import ARCHITECTURES


class Decoder:
    """The blocks of a model of vLLM.

    The row of the architecture says what the blocks return and which norm follows them. Without a row, the code of
    the blocks and the names of known norms do, and the self-test detects a wrong result.

    Attributes:
        blocks: The decoder blocks, in order.
        parent: The module that has the blocks and the norm after them.
        fused: For each block, whether the residual stream is the sum of the pair that the block returns.
    """

    def __init__(self, model: torch.nn.Module, text_config: Any) -> None:
        """Find the blocks. Raise RuntimeError unless exactly one list of modules has the length of the model."""
        num_layers = text_config.num_hidden_layers
        module_lists = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.ModuleList) and len(module) == num_layers
        }
        if len(module_lists) != 1:
            names = ", ".join(module_lists) or "none"
            raise RuntimeError(f"expected one list of {num_layers} blocks in {type(model).__name__}, found: {names}")
        ((name, blocks),) = module_lists.items()
        self.blocks = list(blocks)
        self.parent = model.get_submodule(name.rpartition(".")[0])
        self._row = ARCHITECTURES.get(text_config.model_type)
        self.fused = [self._fuses(block) for block in self.blocks]

    def _fuses(self, block: torch.nn.Module) -> bool:
        # Where the tried vLLM returns one tensor, another release may return a pair.
        if self._row is None or self._row.block == "tensor":
            return fuses(block)
        return self._row.block == "sum"

    def final_norm(self, stream: torch.Tensor) -> torch.Tensor:
        """Apply the norm between the last block and the LM head. Raise RuntimeError if the norm is not known."""
        names = [self._row.norm] if self._row else sorted({row.norm for row in ARCHITECTURES.values()})
        norms = [norm for norm in (getattr(self.parent, name, None) for name in names) if norm is not None]
        if len(norms) != 1:
            raise RuntimeError(
                f"expected one final norm in {type(self.parent).__name__} ({', '.join(names)}), found {len(norms)}; "
                "the steering self-test needs it"
            )
        normed = norms[0](stream)
        return normed[0] if isinstance(normed, tuple) else normed  # the norm of Cohere also returns a residual


def fuses(block: torch.nn.Module) -> bool:
    """Return whether the residual stream is the sum of the pair that a block returns, according to its code."""
    try:
        return not adds_second(inspect.getsource(type(block).forward))
    except (OSError, TypeError):  # no source
        return True


def adds_second(source: str) -> bool:
    """Return whether a function returns a pair in which the first part was last set to a sum with the second part."""
    tree = ast.parse(textwrap.dedent(source))
    pairs = [
        node.value for node in ast.walk(tree) if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple)
    ]
    if not pairs or len(pairs[-1].elts) < 2:
        return False
    first, second = (ast.unparse(element) for element in pairs[-1].elts[:2])
    sets = [node for node in ast.walk(tree) if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == first]
    if not sets:
        return False
    value = max(sets, key=lambda node: node.lineno).value
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and second in names
