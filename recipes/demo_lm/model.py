"""Shape and storage of the demo language model."""

from pathlib import Path

import torch
from recipes.demo_lm.tokenizer import MAX_LENGTH
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WIDTH, BLOCKS, HEADS, INNER = 256, 6, 4, 688
SHARD_BYTES = "4500KB"


def build(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Return a new model: head size 64, tied embeddings, 5.8 M parameters at a vocabulary of 4,096."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.03,
    )
    return LlamaForCausalLM(config)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Store weights as bfloat16 shards; the configuration says float32, which is what they load as."""
    state = {
        name: tensor.detach().to(torch.bfloat16)
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embeddings
    }
    for stale in folder.glob("*.safetensors*"):
        stale.unlink()
    model.save_pretrained(folder, state_dict=state, max_shard_size=SHARD_BYTES)
    tokenizer.save_pretrained(folder)
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"bfloat16"', '"float32"'))
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)
