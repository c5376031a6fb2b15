"""One loaded model in vLLM: what may be asked of it, and how a request runs.

``requests`` are what goes in and comes out, ``limits`` what they are checked against; ``engine`` runs them, each
steered one in a row of the worker's table that ``rows`` lends; ``launch`` starts vLLM, ``border`` turns its errors
into ours. What is asked of an engine beyond texts: ``perplexity``, ``norms``, ``selftest``.
"""

from poolbench_steerer.engine.engine import SteeringEngine
from poolbench_steerer.engine.requests import Generation, GenerationRequest, Piece

__all__ = ["Generation", "GenerationRequest", "Piece", "SteeringEngine"]
