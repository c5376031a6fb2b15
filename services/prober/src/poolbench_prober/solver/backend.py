"""The array library of a solver: NumPy, or torch on a device. The mathematics is written once.

The other modules use only what both libraries share: operators, `@`, `mT`, `sum`, `where`, `clip`, `exp`, `tanh`,
`linalg.qr` and `linalg.eigh`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any  #: np.ndarray or torch.Tensor


@dataclass(frozen=True)
class Backend:
    """An array library and where its arrays live."""

    name: str  # `numpy` or `torch:<device type>`
    xp: Any
    device: Any = None  # torch device, None for NumPy

    def array(self, values: np.ndarray) -> Array:
        """Return the values on the device, in float64."""
        if self.device is None:
            return np.asarray(values, dtype=np.float64)
        return self.xp.as_tensor(values, device=self.device).to(self.xp.float64)

    def raw(self, values: np.ndarray) -> Array:
        """Return the values on the device, in their own type."""
        return values if self.device is None else self.xp.as_tensor(values, device=self.device)

    def zeros(self, *shape: int) -> Array:
        """Return zeros in float64."""
        if self.device is None:
            return np.zeros(shape)
        return self.xp.zeros(shape, dtype=self.xp.float64, device=self.device)

    def cast(self, values: Array, single: bool) -> Array:
        """Return the values in float32 (`single`) or float64."""
        kind = self.xp.float32 if single else self.xp.float64
        return values.astype(kind, copy=False) if self.device is None else values.to(kind)

    def numpy(self, values: Array) -> np.ndarray:
        """Return the values in host memory."""
        return values if self.device is None else values.cpu().numpy()

    def free_bytes(self) -> int:
        """Return memory that one batch of problems may take."""
        if self.device is None or self.device.type != "cuda":
            return 256 << 20
        return int(self.xp.cuda.mem_get_info(self.device)[0] // 2)


def numpy_backend() -> Backend:
    """Return NumPy and its BLAS."""
    return Backend("numpy", np)


def torch_backend(device: str) -> Backend:
    """Return torch on `device`, e.g. `cpu` or `cuda`."""
    import torch  # heavy; a prober without an accelerator never needs it

    place = torch.device(device)
    return Backend(f"torch:{place.type}", torch, place)
