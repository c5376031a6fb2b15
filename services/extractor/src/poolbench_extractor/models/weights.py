"""Refuse checkpoints whose weights are not those of the model: Transformers draws what is missing at random."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from poolbench.errors import ModelError

_WRAPPER = r"^(?:module\.|_orig_mod\.|base_model\.model\.)+"
#: What DistributedDataParallel, torch.compile and PEFT put before the names of a model, as `key_mapping`.
WRAPPERS = {_WRAPPER: ""}
#: Weights of a block that states depend on. Old checkpoints also hold masks, which newer classes compute.
_OF_BLOCK = re.compile(r"(?<!\.masked)(?<!attn)(?<!attention)\.(?:weight|bias)$")


@dataclass(frozen=True)
class Loaded:
    """What Transformers found in a checkpoint.

    Attributes:
        missing: Weights of the model that the checkpoint lacks.
        unexpected: Names in the checkpoint that the model does not have.
    """

    missing: Sequence[str]
    unexpected: Sequence[str]

    @classmethod
    def of(cls, loading: Mapping[str, Any]) -> Loaded:
        """Return the same from the loading information of `from_pretrained`."""
        return cls(sorted(loading["missing_keys"]), sorted(loading["unexpected_keys"]))

    @property
    def is_wrapped(self) -> bool:
        """Return whether weights are missing, and all that were found instead have the prefix of a wrapper."""
        return bool(self.missing and self.unexpected) and all(re.match(_WRAPPER, name) for name in self.unexpected)

    def has_head(self, model: Any) -> bool:
        """Return whether the language-model head was in the checkpoint, or is the embedding. Encoders have none."""
        return not any(name.startswith(_head_of(model)) for name in self.missing)

    def require_complete(self, model: Any, blocks: nn.ModuleList, source: str) -> None:
        """Raise ModelError if states depend on a weight that is missing, or would on one that is left out.

        States do not depend on the language-model head, the pooler of an encoder, and the towers of other modalities.
        """
        text = _path_of(model, model.get_decoder())
        unread = (*_head_of(model), f"{text}pooler.")
        missing = [name for name in self.missing if name.startswith(text) and not name.startswith(unread)]
        left_out = _left_out(self.unexpected, model, blocks)
        if not missing and not left_out:
            return
        faults = [f"lacks weights, such as {missing[0]}"] if missing else []
        others = left_out or self.unexpected
        if others:
            faults.append(f"has others that the model does not have, such as {others[0]}")
        raise ModelError(
            f"checkpoint {source} {' and '.join(faults)}; it and config.json must be of one model: save them together "
            "with save_pretrained"
        )


def _left_out(names: Sequence[str], model: Any, blocks: nn.ModuleList) -> list[str]:
    """Return weights of blocks among names: of blocks that the model does not have, or does not have in a block."""
    paths = {_path_of(model, blocks), _path_of(model.get_decoder(), blocks)}
    block = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(paths)))})(\d+)\.")
    # Layers that predict further tokens follow the blocks in some checkpoints.
    num_blocks = len(blocks) + (getattr(model.config, "num_nextn_predict_layers", None) or 0)
    weights = [(name, int(match[1])) for name in names if (match := block.match(name))]
    return [name for name, index in weights if index >= num_blocks or (index < len(blocks) and _OF_BLOCK.search(name))]


def _head_of(model: Any) -> tuple[str, ...]:
    head = model.get_output_embeddings()
    return () if head is None else (_path_of(model, head),)


def _path_of(model: nn.Module, part: nn.Module) -> str:
    """Return what the names of the weights of a part begin with."""
    name = next(name for name, module in model.named_modules() if module is part)
    return f"{name}." if name else ""
