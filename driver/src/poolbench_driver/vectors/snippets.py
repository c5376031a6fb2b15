"""Scripts that steer in TransformerLens, nnsight and Transformers, beside the numbers that they read."""

from collections.abc import Mapping

import numpy as np

from poolbench.config import resolve_model
from poolbench.errors import PoolbenchError
from poolbench_driver.vectors.card import Vector

_HEAD = '''"""Steer {model} along {name} at layer {layer}, in {tool}: python steer.py PROMPT [ALPHA]

The vector is added to the output of block {layer}, counted from 0: h + ALPHA * vector, at all positions. It has the
norm {norm:.6g}, in the units of the residual stream.{note}
"""

import sys
from pathlib import Path

import torch
{imports}
from safetensors.torch import load_file

MODEL, REVISION = {source!r}, {revision!r}
LAYER, ALPHA = {layer}, {alpha!r}
VECTOR = load_file(Path(__file__).with_name("vector.safetensors"))["direction.{layer}"]


'''

_TAIL = """

if __name__ == "__main__":
    prompt, alpha = sys.argv[1], float((*sys.argv, ALPHA)[2])
    model, tokenizer = load()
    log_probs = steered_log_probs(model, tokenizer, prompt, alpha)
    top = log_probs[-1].topk(5)
    for value, token in zip(top.values.tolist(), top.indices.tolist()):
        print(f"{value:8.4f}  {tokenizer.decode([token])!r}")
"""

_TRANSFORMERS = '''def load():
    """Return the model in float32 and its tokenizer."""
    return AutoModelForCausalLM.from_pretrained(MODEL, revision=REVISION, dtype=torch.float32).eval(), (
        AutoTokenizer.from_pretrained(MODEL, revision=REVISION)
    )


def block(model):
    """Return block LAYER: that of the longest list of modules, whatever the architecture calls it."""
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=len)[LAYER]


def steered(model, alpha=ALPHA):
    """Steer all further calls of the model, generate() too; .remove() of what it returns ends that."""

    def add(module, inputs, output):
        hidden = output[0] if isinstance(output, tuple) else output
        hidden = hidden + alpha * VECTOR.to(hidden)
        return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

    return block(model).register_forward_hook(add)


@torch.no_grad()
def steered_log_probs(model, tokenizer, prompt, alpha=ALPHA):
    """Return log-probabilities [tokens, vocabulary] of what follows each token of the prompt."""
    handle = steered(model, alpha)
    try:
        return model(**tokenizer(prompt, return_tensors="pt")).logits[0].log_softmax(-1)
    finally:
        handle.remove()
'''

_TRANSFORMERLENS = '''def load():
    """Return the model in float32, with the weights as they are, and its tokenizer."""
    model = TransformerBridge.boot_transformers(MODEL, dtype=torch.float32, device="cpu")
    return model, AutoTokenizer.from_pretrained(MODEL, revision=REVISION)


@torch.no_grad()
def steered_log_probs(model, tokenizer, prompt, alpha=ALPHA):
    """Return log-probabilities [tokens, vocabulary] of what follows each token of the prompt."""

    def add(hidden, hook):
        return hidden + alpha * VECTOR.to(hidden)

    tokens = tokenizer(prompt, return_tensors="pt").input_ids
    logits = model.run_with_hooks(tokens, fwd_hooks=[(f"blocks.{LAYER}.hook_resid_post", add)])
    return logits[0].log_softmax(-1)
'''

_NNSIGHT = '''def load():
    """Return the model in float32 and its tokenizer."""
    model = LanguageModel(MODEL, revision=REVISION, dtype=torch.float32, device_map="cpu", dispatch=True)
    return model, model.tokenizer


def block(model):
    """Return block LAYER."""
    for path in ("model.layers", "transformer.h", "gpt_neox.layers", "model.decoder.layers"):
        try:
            blocks = model
            for name in path.split("."):
                blocks = getattr(blocks, name)
            return blocks[LAYER]
        except AttributeError:
            continue
    raise SystemExit("name the list of blocks of this architecture in block()")


@torch.no_grad()
def steered_log_probs(model, tokenizer, prompt, alpha=ALPHA):
    """Return log-probabilities [tokens, vocabulary] of what follows each token of the prompt."""
    at = block(model)
    with model.trace(prompt):
        hidden = at.output[0] if isinstance(at.output, tuple) else at.output
        hidden[:] = hidden + alpha * VECTOR.to(hidden)
        logits = model.lm_head.output.save()
    return logits[0].log_softmax(-1)
'''

#: Imports and body of each script, by the name of the tool.
SNIPPETS: Mapping[str, tuple[str, str]] = {
    "transformerlens": (
        "from transformers import AutoTokenizer\nfrom transformer_lens.model_bridge import TransformerBridge",
        _TRANSFORMERLENS,
    ),
    "nnsight": ("from nnsight import LanguageModel", _NNSIGHT),
    "transformers": ("from transformers import AutoModelForCausalLM, AutoTokenizer", _TRANSFORMERS),
}


def snippet(tool: str, vector: Vector, layer: int, alpha: float | None) -> str:
    """Return the script of a tool. Without a recommended factor, the script starts with factor 1."""
    imports, body = SNIPPETS[tool]
    card = vector.card
    try:
        source, is_local = (ref := resolve_model(card.model)).source, ref.is_local
    except PoolbenchError:  # it is on another machine
        source, is_local = card.model, False
    note = "" if alpha is not None else " The card recommends none, so it begins with 1."
    head = _HEAD.format(
        model=card.model,
        name=card.name,
        layer=layer,
        tool=tool,
        note=note,
        norm=float(np.linalg.norm(vector.vectors[layer])),
        imports=imports,
        source=source,
        revision=None if is_local else card.model_revision,
        alpha=1.0 if alpha is None else alpha,
    )
    return head + body + _TAIL
