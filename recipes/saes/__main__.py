"""`python -m recipes.saes`: train the sparse autoencoders of a layer, in SAELens's folder format.

python -m recipes.saes --model demo --output FOLDER      # demo: reads the archives in POOLBENCH_REAL_TEXT
python -m recipes.saes --model demo --check FOLDER       # measures their quality again
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# The model is a folder: without this, libraries ask a hub about it.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from recipes.saes.plans import Plan, plan_of
from recipes.saes.quality import quality_of
from recipes.saes.states import Reader
from recipes.saes.texts import pieces_of
from recipes.saes.train import Autoencoder, train
from safetensors.torch import save
from transformers import AutoModelForCausalLM, AutoTokenizer

from poolbench.config import ModelRef, resolve_model
from poolbench.directions.sae import SparseAutoencoder
from poolbench.errors import PoolbenchError
from poolbench_extractor.models.load import load_decoder

_WEIGHTS, _CONFIG, _QUALITY = "sae_weights.safetensors", "cfg.json", "quality.json"


def main() -> int:
    """Train; return 1 after an error of the user, and 130 after an interruption."""
    options = _arguments()
    try:
        ref = resolve_model(options.model)
        if options.seeds < 1:
            raise ValueError(f"--seeds {options.seeds}: at least 1 is needed")
        plan = plan_of(ref.id)
        if options.tokens:
            plan = replace(plan, num_tokens=options.tokens)
        texts, held_out = pieces_of(plan.planted)
        if options.output:
            dtype = getattr(torch, options.dtype)
            make(ref, plan, options.layer, texts, options.output, seeds=range(options.seeds), dtype=dtype)
        check(ref, held_out, options.output or options.check)
    except (PoolbenchError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def make(
    ref: ModelRef,
    plan: Plan,
    layer: int | None,
    texts: Sequence[str],
    output: Path,
    *,
    seeds: Sequence[int] = (0,),
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write the autoencoders of a plan, trained on `texts` once for each seed, into `output`.

    Seeds draw the weights and the order of the states. Products are computed in `dtype`.
    """
    model = AutoModelForCausalLM.from_pretrained(ref.source, dtype=dtype)
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(ref.source)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    layer = int(model.config.num_hidden_layers * 0.5) if layer is None else layer
    reader, hook = Reader(model, tokenizer, layer), f"blocks.{layer}.hook_resid_post"
    for seed in seeds:
        models, scale = train(reader, texts, plan, seed, dtype)
        for name, trained in models.items():
            folder = output / (f"{name}-s{seed}" if seed else name)
            folder.mkdir(parents=True, exist_ok=True)
            for file, data in _files(trained, scale, plan, hook, Path(ref.id).name, seed).items():
                (folder / file).write_bytes(data)


def check(ref: ModelRef, texts: Sequence[str], folder: Path) -> None:
    """Write the quality of the autoencoders in `folder`, which read one layer, on held-out texts beside them."""
    saes = {
        path.parent.name: SparseAutoencoder.from_folder(path.parent)[0] for path in sorted(folder.glob(f"*/{_CONFIG}"))
    }
    layers = {sae.layer for sae in saes.values()}
    layer = layers.pop() if len(layers) == 1 else None
    if layer is None:
        raise ValueError(f"{folder} must hold folders of autoencoders that name one layer; it has {len(saes)}")
    figures = quality_of(saes, load_decoder(ref), layer, texts)
    for name, quality in figures.items():
        print(name, json.dumps(quality))
    (folder / _QUALITY).write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def _files(trained: Autoencoder, scale: float, plan: Plan, hook: str, model: str, seed: int) -> dict[str, bytes]:
    """Return the files of an autoencoder in SAELens's format."""
    w_enc = trained.w_enc
    config: dict[str, Any] = {
        "architecture": {"relu": "standard"}.get(trained.architecture, trained.architecture),
        "d_in": w_enc.shape[0],
        "d_sae": w_enc.shape[1],
        "dtype": plan.dtype,
        "apply_b_dec_to_input": True,
        "normalize_activations": "none",
        "metadata": {
            "model_name": model,
            "hook_name": hook,
            "context_size": 512,
            "prepend_bos": False,
            "training_tokens": plan.num_tokens,
            "seed": seed,
        },
    }
    if trained.architecture == "topk":
        config["k"] = trained.l0
    dtype = getattr(torch, plan.dtype)
    tensors = {name: value.detach().to("cpu", dtype).contiguous() for name, value in trained.exported(scale).items()}
    return {_WEIGHTS: save(tensors), _CONFIG: (json.dumps(config, indent=1) + "\n").encode()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.saes", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo", help="demo, another preset, or a folder")
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--output", type=Path, help="folder for the autoencoders")
    place.add_argument("--check", type=Path, help="folder of autoencoders whose quality is measured again")
    parser.add_argument("--layer", type=int, help="block whose output is read; by default the one at half depth")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the products")
    parser.add_argument("--tokens", type=int, help="tokens that are read, instead of those of the plan")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each; later ones are named NAME-s1 and on")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
