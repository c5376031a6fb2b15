"""Steering vectors in the files that tools write and read: bytes to arrays, without scaling.

| file | written by | names |
|---|---|---|
| GGUF, architecture `controlvector` | llama.cpp, repeng, EasySteer | layers |
| `.npy` [width] | NumPy, `export directions` | - |
| `.npz` | NumPy | layers, model |
| safetensors, or a folder with `vector.safetensors` | PoolBench | layers, model |
| `.pt` of tensors, texts and numbers | PyTorch | layers, model |
| JSON of a vector | Neuronpedia | layer, model |

Layer n is the output of block n, counted from 0. The name of a tensor says it (`direction.3`, `3`, or a site such as
`blocks.4.hook_resid_pre`), and else the fields or metadata `layer`, `hook_name` and so on, in each format alike.
"""

from poolbench.directions.vector_files.gguf import encode_gguf
from poolbench.directions.vector_files.reading import (
    CARD_FILE,
    CARD_KEY,
    VECTOR_FILE,
    VectorFile,
    layer_of,
    read_vector_file,
)
