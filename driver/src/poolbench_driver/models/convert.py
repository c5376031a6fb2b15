"""Conversion of a Llama model from GGUF to a Hugging Face folder in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.errors import ModelError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

ARCHITECTURE = "llama"
#: What Transformers adds to the configuration of a model that comes from GGUF.
_OF_GGUF = ("quantization_config", "model_type", "_name_or_path", "_model_name_or_path", "transformers_version")


def convert(gguf: Path, target: Path, shape: tuple[int, int], say: Callable[[str], None]) -> None:
    """Write the model of a GGUF file as a Hugging Face folder: dequantised weights, tokenizer and chat template.

    Args:
        target: An existing folder.
        shape: Blocks and width that the model must have.
        say: Called with a line before each part.

    Raises:
        ModelError: The file cannot be read, or holds a model of another architecture or shape, or no chat template.
    """
    say("loading Transformers")
    try:
        import gguf as _  # noqa: F401 - Transformers reads GGUF by it
        import transformers
    except ImportError as error:
        remedy = "run `make install`, or `pip install 'poolbench-driver[models]'`"
        raise ModelError(f"{error.name} is not installed, and a conversion needs it: {remedy}") from None
    transformers.utils.logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    say("reading the configuration and the tokenizer")
    config = _read(gguf, transformers.AutoConfig, source)
    _require_shape(gguf, config, shape)
    tokenizer = _read(gguf, transformers.AutoTokenizer, source)
    if not tokenizer.chat_template:
        raise ModelError(f"{gguf.name} has no chat template; a model that follows instructions is needed")
    say("dequantising the weights")
    loaded = _read(gguf, transformers.LlamaForCausalLM, {**source, "config": config, "dtype": "float32"})
    say("writing weights and tokenizer")
    _plain(loaded).save_pretrained(target)
    tokenizer.backend_tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)


def _pre_tokenizer() -> Any:
    """Return how SmolLM splits text before BPE: single digits, then GPT-2's pattern.

    The GGUF file names it (`tokenizer.ggml.pre` is `smollm`), but Transformers reads every such file with GPT-2's
    pattern alone. Then white space before a digit is split otherwise: a blank line before `1.` would be two tokens.
    """
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])


def _read(gguf: Path, kind: Any, source: dict[str, Any]) -> Any:
    """Return what Transformers reads from a GGUF file; raise ModelError with the first line of any error."""
    try:
        return kind.from_pretrained(**source)
    except Exception as error:  # the readers raise what their parsers do
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{gguf.name} cannot be read as a GGUF model ({first}); architecture {ARCHITECTURE} is needed"
        ) from error


def _require_shape(gguf: Path, config: Any, shape: tuple[int, int]) -> None:
    if config.model_type != ARCHITECTURE:
        raise ModelError(f"{gguf.name} has architecture {config.model_type}; only {ARCHITECTURE} can be converted")
    gguf_shape = config.num_hidden_layers, config.hidden_size
    if gguf_shape != shape:
        raise ModelError(
            f"{gguf.name} has {gguf_shape[0]} blocks of width {gguf_shape[1]}; {shape[0]} of width {shape[1]} "
            "are expected"
        )


def _plain(loaded: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a model with the same weights that can be saved: `save_pretrained` refuses one that came from GGUF."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = {name: value for name, value in loaded.config.to_dict().items() if name not in _OF_GGUF}
    model = LlamaForCausalLM(LlamaConfig(**settings | {"architectures": ["LlamaForCausalLM"]})).float()
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    return model
