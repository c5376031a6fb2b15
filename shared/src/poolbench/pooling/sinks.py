"""Attention sinks: tokens of enormous norm that pretrained decoders park attention on.

Reference: Sun et al. (2024), "Massive activations in large language models"; Xiao et al. (2023), "Efficient streaming
language models with attention sinks".
"""

from dataclasses import dataclass

import numpy as np

from poolbench.contracts.bounds import SINK_RATIO


@dataclass(frozen=True)
class SinkRule:
    """A rule that decides which tokens are attention sinks at a layer, and whether strategies leave them out."""

    ratio: float = SINK_RATIO
    leave_out: bool = True

    def find(self, norms_T: np.ndarray, real_T: np.ndarray) -> np.ndarray:
        """Return a mask of the positions that are attention sinks, bool [T].

        Args:
            norms_T: L2 norms of the hidden states at one layer.
            real_T: Mask of the real tokens. Other positions are never sinks, and do not enter the median.
        """
        norms_T = norms_T.astype(np.float64)
        if not real_T.any():
            return np.zeros(len(real_T), dtype=bool)
        # A state that is not finite is an error of its passage, which leaving it out would hide.
        return real_T & np.isfinite(norms_T) & (norms_T > self.ratio * np.median(norms_T[real_T]))


#: The rule of the corrected protocol.
LEAVE_OUT = SinkRule()
