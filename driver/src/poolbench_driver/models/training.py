"""Training of one LoRA adapter on texts, and the record of it that stands beside the adapter."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.config import ADAPTER_FILE, ModelRef
from poolbench.errors import ModelError

if TYPE_CHECKING:
    import torch

#: The record in the folder of an adapter.
RECORD_FILE = "training.json"
#: Tokens of a text that are read; the rest is left out.
MAX_TOKENS = 512
#: Targets that the loss leaves out.
_IGNORED = -100
#: Share of the steps in which the learning rate rises.
_WARMUP = 0.1


@dataclass(frozen=True)
class Training:
    """The settings and amounts of an adapter's training: the content of `training.json`."""

    epochs: int  # passes over the sentences
    sentences: int  # their number
    seed: int  # seed of the first weights and of the order
    sentences_sha256: str  # of the sentences in UTF-8, each with a line feed after it
    base_model: str  # preset, hub id or name of a folder
    base_model_revision: str | None
    rank: int
    learning_rate: float
    batch_size: int

    @classmethod
    def of(
        cls, texts: Sequence[str], model: ModelRef, *, epochs: int, seed: int, rank: int, rate: float, batch: int
    ) -> Training:
        """Return the record of a training on texts."""
        content = sha256("".join(f"{text}\n" for text in texts).encode()).hexdigest()
        return cls(epochs, len(texts), seed, content, base_name(model), model.revision, rank, rate, batch)

    def after(self, epochs: int) -> Training:
        """Return the record of an adapter that is saved earlier or later."""
        return replace(self, epochs=epochs)

    def as_record(self) -> dict[str, Any]:
        """Return the content of the record file."""
        return asdict(self)


def read_record(folder: Path) -> Any:
    """Return the record of a fine-tune's training, or None if there is no readable record."""
    try:
        return json.loads((folder / RECORD_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def read_amounts(folder: Path) -> dict[str, float]:
    """Read epochs and sentences from the record of a fine-tune, or return {} unless the record has both."""
    try:
        record = read_record(folder)
        amounts = {name: float(record[name]) for name in ("epochs", "sentences")}
    except (TypeError, KeyError, ValueError, OverflowError):
        return {}
    return amounts if all(map(math.isfinite, amounts.values())) else {}


def base_name(model: ModelRef) -> str:
    """Return a name of a base model that holds on other machines."""
    return Path(model.id).name if model.is_local else model.id


def load_base(model: ModelRef) -> tuple[Any, Any]:
    """Load a model in float32 and its tokenizer with padding. Raise ModelError if either cannot be read."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    revision = None if model.is_local else model.revision
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model.source, revision=revision, dtype="float32"
        )
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model.source, revision=revision)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"model {model.id} cannot be read: {reason}") from None
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise ModelError(f"the tokenizer of {model.id} has neither a padding token nor one that ends a text")
    return loaded, tokenizer


def new_adapter(model: Any, rank: int, seed: int) -> Any:
    """Add an untrained adapter to all linear layers of a model but the head. The output is unchanged at first."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the layers of GPT-2 have other axes, which PEFT then allows for
        return get_peft_model(model, config)


def train_adapter(
    adapted: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    name: str,
    epochs: int,
    batch: int,
    rate: float,
    after_epoch: Callable[[int], None] = lambda _: None,
) -> None:
    """Train the adapter of a model, on the device that the model is on.

    The learning rate rises over the first tenth of the steps and is then constant.

    Args:
        name: Name that is printed with the loss of each epoch.
        epochs: Passes over the texts.
        batch: Number of texts per step.
        rate: Learning rate.
        after_epoch: Called with the number of each epoch that ended.

    Raises:
        ModelError: The loss is not finite.
    """
    import torch

    adapted.train()
    optimizer = torch.optim.AdamW((tensor for tensor in adapted.parameters() if tensor.requires_grad), weight_decay=0.0)
    num_steps = epochs * -(-len(texts) // batch)
    step = 0
    for epoch in range(1, epochs + 1):
        losses = []
        for tokens_BT, targets_BT in _batches(tokenizer, texts, batch, adapted.device):
            step += 1
            optimizer.param_groups[0]["lr"] = rate * min(1.0, step / (_WARMUP * num_steps))
            loss = _loss(adapted, tokens_BT, targets_BT)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(adapted.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        mean = sum(losses) / len(losses)
        if not math.isfinite(mean):
            raise ModelError(f"{name}: the loss of epoch {epoch} is {mean}; use a smaller learning rate than {rate:g}")
        print(f"{name}: epoch {epoch} of {epochs}, loss {mean:.3f}", file=sys.stderr, flush=True)
        after_epoch(epoch)


def mean_loss(model: Any, tokenizer: Any, texts: Sequence[str], batch: int) -> float:
    """Return the mean loss per predicted token of the texts, in nats."""
    import torch

    model.eval()
    total, num_targets = 0.0, 0
    with torch.inference_mode():
        for tokens_BT, targets_BT in _batches(tokenizer, texts, batch, model.device):
            count = int((targets_BT[:, 1:] != _IGNORED).sum())
            total += float(_loss(model, tokens_BT, targets_BT)) * count
            num_targets += count
    return total / num_targets


def _loss(model: Any, tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the tokens after the first. Matrix products are in bfloat16."""
    import torch

    with torch.autocast(tokens_BT.device.type, torch.bfloat16):
        logits_BTV = model(tokens_BT, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits_BTV.float().flatten(0, 1), targets_BT[:, 1:].flatten(), ignore_index=_IGNORED
    )


def _batches(
    tokenizer: Any, texts: Sequence[str], size: int, device: torch.device
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield token ids and targets [B, T] in random order; padding is not a target."""
    import torch

    order = torch.randperm(len(texts)).tolist()
    for first in range(0, len(order), size):
        # Padding stands on the right, where no token of the text attends to it: a mask is not needed.
        batch = tokenizer(
            [texts[index] for index in order[first : first + size]],
            return_tensors="pt",
            padding=True,
            padding_side="right",
            truncation=True,
            max_length=MAX_TOKENS,
        ).to(device)
        yield batch["input_ids"], batch["input_ids"].masked_fill(batch["attention_mask"] == 0, _IGNORED)


def save_adapter(adapted: Any, training: Training, folder: Path) -> None:
    """Write an adapter in PEFT's format and bfloat16, with its record. If `folder` exists, it is complete."""
    part = folder.with_name(f"{folder.name}.part")
    weights = {name: weight.bfloat16().cpu() for name, weight in adapted.state_dict().items() if "lora_" in name}
    # To decide on embedding layers, PEFT would look for the base model on a hub.
    adapted.save_pretrained(str(part), state_dict=weights, save_embedding_layers=False)
    (part / "README.md").unlink(missing_ok=True)  # an empty form
    (part / "adapter_model.safetensors").chmod(0o644)
    settings = json.loads((part / ADAPTER_FILE).read_text("utf-8"))
    settings["base_model_name_or_path"] = training.base_model
    settings["target_modules"].sort()  # PEFT writes a set: its order differs between processes
    (part / ADAPTER_FILE).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", "utf-8")
    (part / RECORD_FILE).write_text(json.dumps(training.as_record(), indent=2) + "\n", "utf-8")
    part.replace(folder)
