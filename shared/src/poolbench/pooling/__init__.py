"""Pooling strategies: from the hidden states of one passage to one vector.

A strategy is a small function from a `TokenContext` to weights over tokens or to a reduction. A supervised one
returns several weight vectors, which a readout (`poolbench.readouts`) turns into one vector.
Registry and weights need NumPy only; `poolbench.pooling.batch` applies them with torch.
"""

from poolbench.pooling.context import Reduction, TokenContext, Weights, Words
from poolbench.pooling.registry import STRATEGIES
