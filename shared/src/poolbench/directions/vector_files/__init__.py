"""Steering vectors in the files that tools write and read: bytes to arrays, without scaling.

| file | written by | names |
|---|---|---|
| GGUF, architecture `controlvector` | llama.cpp, repeng, EasySteer | layers |
| `.npy` [width] | NumPy, `export directions` | - |
| safetensors, or a folder with `vector.safetensors` | PoolBench | layers, by tensors `direction.<layer>` |
| `.pt` of tensors alone | PyTorch | layers, if it is a dictionary by layer |
| JSON of a vector | Neuronpedia | model, layer |

Layer n is the output of block n, counted from 0.
"""

from poolbench.directions.vector_files.gguf import encode_gguf
from poolbench.directions.vector_files.reading import CARD_FILE, CARD_KEY, VECTOR_FILE, VectorFile, read_vector_file
