"""Copies between the host and a device, of which neither waits for the other."""

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """A tensor on its way to the host. On a CPU it is the tensor itself."""

    def __init__(self, values: Tensor) -> None:
        """Start the copy, behind all work that the device was given so far."""
        self._values, self._event = values, None
        if values.is_cuda:
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._event = torch.cuda.current_stream(values.device).record_event()

    @property
    def is_done(self) -> bool:
        """Return whether the tensor has arrived."""
        return self._event is None or self._event.query()

    def wait(self) -> Tensor:
        """Wait for the tensor, and return it."""
        if self._event is not None:
            self._event.synchronize()
        return self._values


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device.

    A copy from pinned memory does not wait for the work that the device has. PyTorch keeps the memory until the copy is
    done.
    """
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
