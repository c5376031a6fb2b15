"""Training of one LoRA adapter on texts."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional

_TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_IGNORED = -100
_WARMUP = 0.1


def new_adapter(model: Any, rank: int, seed: int) -> Any:
    """Return the model with an adapter that changes nothing yet."""
    torch.manual_seed(seed)
    return get_peft_model(
        model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=_TARGETS, task_type="CAUSAL_LM")
    )


def train_adapter(
    adapted: Any, tokenizer: Any, texts: Sequence[str], *, name: str, epochs: int, batch: int, rate: float
) -> None:
    """Train the adapter of a model.

    The learning rate rises over the first tenth of the steps and is then constant.

    Args:
        name: What the loss of each epoch is printed with.
        epochs: Passes over the texts.
        batch: Texts of a step.
        rate: Learning rate.
    """
    adapted.train()
    optimizer = torch.optim.AdamW((tensor for tensor in adapted.parameters() if tensor.requires_grad), weight_decay=0.0)
    num_steps = epochs * -(-len(texts) // batch)
    step = 0
    for epoch in range(1, epochs + 1):
        losses = []
        for tokens_BT, targets_BT in _batches(tokenizer, texts, batch):
            step += 1
            optimizer.param_groups[0]["lr"] = rate * min(1.0, step / (_WARMUP * num_steps))
            loss = _loss(adapted, tokens_BT, targets_BT)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(adapted.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        print(f"{name}: epoch {epoch} of {epochs}, loss {mean:.3f}", file=sys.stderr)


def mean_loss(model: Any, tokenizer: Any, texts: Sequence[str], batch: int) -> float:
    """Return the mean loss per predicted token of the texts, in nats."""
    model.eval()
    total, num_targets = 0.0, 0
    with torch.inference_mode():
        for tokens_BT, targets_BT in _batches(tokenizer, texts, batch):
            count = int((targets_BT[:, 1:] != _IGNORED).sum())
            total += float(_loss(model, tokens_BT, targets_BT)) * count
            num_targets += count
    return total / num_targets


def _loss(model: Any, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the tokens after the first. Matrix products are in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        logits_BTV = model(tokens_BT, use_cache=False).logits[:, :-1]
    return functional.cross_entropy(
        logits_BTV.float().flatten(0, 1), targets_BT[:, 1:].flatten(), ignore_index=_IGNORED
    )


def _batches(tokenizer: Any, texts: Sequence[str], size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield token ids and targets [B, T] in random order; padding is not a target."""
    order = torch.randperm(len(texts)).tolist()
    for first in range(0, len(order), size):
        # Padding stands on the right, where no token of the text attends to it: a mask is not needed.
        batch = tokenizer(
            [texts[index] for index in order[first : first + size]],
            return_tensors="pt",
            padding=True,
            padding_side="right",
        )
        yield batch["input_ids"], batch["input_ids"].masked_fill(batch["attention_mask"] == 0, _IGNORED)


def save_adapter(adapted: Any, base: str, folder: Path) -> None:
    """Write an adapter in PEFT's format, in bfloat16. The folder is complete when it exists.

    Args:
        adapted: the model with its adapter.
        base: name of the model that the adapter's configuration gets; it must hold on other machines.
        folder: folder to write.
    """
    part = folder.with_name(f"{folder.name}.part")
    adapted.peft_config["default"].base_model_name_or_path = base
    weights = {name: weight.bfloat16() for name, weight in adapted.state_dict().items() if "lora_" in name}
    # To decide on embedding layers, PEFT would look for the base model on a hub.
    adapted.save_pretrained(str(part), state_dict=weights, save_embedding_layers=False)
    (part / "README.md").unlink(missing_ok=True)  # an empty form
    (part / "adapter_model.safetensors").chmod(0o644)
    settings = json.loads((part / "adapter_config.json").read_text("utf-8"))
    settings["target_modules"].sort()  # PEFT writes a set: its order differs between processes
    (part / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", "utf-8")
    part.replace(folder)
