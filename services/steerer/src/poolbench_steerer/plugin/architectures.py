"""The tested architectures: what a decoder block of vLLM returns, and the name of the norm after the last block."""

from typing import Literal, NamedTuple


class Architecture(NamedTuple):
    """One tested architecture.

    Attributes:
        title: The name that people use.
        block: What a block returns. `tensor` is the residual stream alone. `sum` is a pair whose sum is the stream,
            because the next norm adds the two. `first` is a pair whose first part is the whole stream.
        norm: Name of the norm between the last block and the LM head. The norm is a sibling of the blocks.
    """

    title: str
    block: Literal["tensor", "sum", "first"]
    norm: str


#: By model type of the text model in Transformers. `tests/zoo.py` has a small model of each.
ARCHITECTURES = {
    "arcee": Architecture("Arcee", "tensor", "norm"),
    "bloom": Architecture("BLOOM", "tensor", "ln_f"),
    "cohere": Architecture("Cohere (Command R)", "first", "norm"),
    "cohere2": Architecture("Cohere 2 (Command R7B)", "first", "norm"),
    "ernie4_5": Architecture("ERNIE 4.5", "sum", "norm"),
    "exaone4": Architecture("EXAONE 4", "first", "norm"),
    "falcon": Architecture("Falcon", "tensor", "ln_f"),
    "gemma": Architecture("Gemma", "sum", "norm"),
    "gemma2": Architecture("Gemma 2", "sum", "norm"),
    "gemma3_text": Architecture("Gemma 3", "sum", "norm"),
    "glm": Architecture("GLM", "tensor", "norm"),
    "glm4": Architecture("GLM-4", "sum", "norm"),
    "glm4_moe": Architecture("GLM-4.5", "sum", "norm"),
    "gpt2": Architecture("GPT-2", "tensor", "ln_f"),
    "gpt_bigcode": Architecture("GPTBigCode (StarCoder)", "tensor", "ln_f"),
    "gpt_neox": Architecture("GPT-NeoX (Pythia)", "tensor", "final_layer_norm"),
    "gpt_oss": Architecture("gpt-oss", "sum", "norm"),
    "gptj": Architecture("GPT-J", "tensor", "ln_f"),
    "granite": Architecture("Granite", "tensor", "norm"),
    "granitemoe": Architecture("Granite MoE", "tensor", "norm"),
    "helium": Architecture("Helium", "tensor", "norm"),
    "hunyuan_v1_dense": Architecture("HunYuan", "tensor", "norm"),
    "hyperclovax": Architecture("HyperCLOVA X", "first", "norm"),
    "llama": Architecture("Llama", "sum", "norm"),
    "ministral3": Architecture("Ministral 3", "sum", "norm"),
    "mistral": Architecture("Mistral", "sum", "norm"),
    "mixtral": Architecture("Mixtral", "sum", "norm"),
    "nemotron": Architecture("Nemotron", "sum", "norm"),
    "olmo": Architecture("OLMo", "tensor", "norm"),
    "olmo2": Architecture("OLMo 2", "tensor", "norm"),
    "olmo3": Architecture("OLMo 3", "tensor", "norm"),
    "olmoe": Architecture("OLMoE", "sum", "norm"),
    "opt": Architecture("OPT", "tensor", "final_layer_norm"),
    "phi": Architecture("Phi", "tensor", "final_layernorm"),
    "phi3": Architecture("Phi-3", "sum", "norm"),
    "qwen2": Architecture("Qwen2", "sum", "norm"),
    "qwen2_moe": Architecture("Qwen2-MoE", "sum", "norm"),
    "qwen3": Architecture("Qwen3", "sum", "norm"),
    "qwen3_moe": Architecture("Qwen3-MoE", "sum", "norm"),
    "seed_oss": Architecture("Seed-OSS", "tensor", "norm"),
    "smollm3": Architecture("SmolLM3", "tensor", "norm"),
    "stablelm": Architecture("StableLM", "first", "norm"),
    "starcoder2": Architecture("StarCoder2", "tensor", "norm"),
    "vaultgemma": Architecture("VaultGemma", "tensor", "norm"),
}
