"""One loaded model in vLLM: requests, their checks, and how they run.

`requests` are input and output, `limits` checks both; `engine` runs them, each steered one in a row of the worker's
table that `rows` lends; `launch` starts vLLM. Besides texts: `perplexity`, `norms`, `selftest`.
"""

from poolbench_steerer.engine.engine import SteeringEngine
from poolbench_steerer.engine.requests import Generation, GenerationRequest, Piece
