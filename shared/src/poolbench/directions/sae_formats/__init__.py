"""Formats of sparse autoencoders other than ours, converted into it: tensors and settings.

| files | format |
|---|---|
| `params.npz` | Gemma Scope |
| `hyperparams.json`, `checkpoints/final.safetensors` | Llama Scope |
| `ae.pt`, `config.json` | dictionary_learning |

Each reader takes the path that the user gave, a folder or a file, and returns None if the format is another one.
"""

from poolbench.directions.sae_formats.converted import Converted, unread_format
from poolbench.directions.sae_formats.dictionary_learning import read_dictionary
from poolbench.directions.sae_formats.gemma_scope import read_gemma_scope
from poolbench.directions.sae_formats.llama_scope import read_llama_scope

READERS = (read_gemma_scope, read_llama_scope, read_dictionary)
