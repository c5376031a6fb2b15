"""The GPU kernel against the plain arithmetic: on a GPU where there is one, else in Triton's interpreter."""

import os

import numpy as np
import pytest
import torch

from poolbench_steerer.plugin.operators import steer_tokens
from poolbench_steerer.plugin.state import Kernel, SteeringState

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton comes with the CUDA build of torch only")

WIDTH, NUM_ROWS, NUM_TOKENS = 96, 16, 44  # not a power of two; the last four tokens are padding


def state_of(vectors: torch.Tensor, device: str, kernel: Kernel | None, dtype: torch.dtype) -> SteeringState:
    state = SteeringState(
        num_layers=2, width=WIDTH, num_slots=8, num_rows=NUM_ROWS, num_tokens=64, device=torch.device(device),
        num_edits=3, window=64, kernel=kernel, dtype=dtype,
    )  # fmt: skip
    state.fill(list(range(1, 9)), vectors)
    for row in range(1, NUM_ROWS - 1):
        edits = [[row % 2, 1 + (row + e) % 8, 1 + (row + e) % 4, 0.3 * row] for e in range(1 + row % 3)]
        readings = [[(row + k) % 2, 1 + (row + k) % 6] for k in range(row % 5)]
        wire = {"row": row, "start": 0, "stop": None, "edits": edits, "readings": readings, "read_from": 3}
        if row % 5 in (0, 2, 3):  # beside no reading, and beside some
            wire["pool"] = [row % 2, 64]
        if row % 4 < 2:
            wire["where"] = [0, 1 + row % 6, 1.0 if row % 8 else -1.0, 0.1 * row - 0.6]
        state.admit(f"r{row}", wire)
    emptied = [[0, 8, 4, 1.0], [0, 8, 1, 1.0]]  # the vector of slot 8 is zero
    state.admit("emptied", {"row": NUM_ROWS - 1, "start": 0, "stop": None, "edits": emptied})
    token_rows = np.arange(40) % NUM_ROWS
    copies = np.where(np.arange(40) % 5 == 0, 2, np.arange(40) % 3 == 0) * (token_rows > 0)
    state.rows.positions = np.arange(40)
    state.begin_batch(token_rows + NUM_ROWS * copies)
    return state


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_equals_the_arithmetic(dtype, fused, layer):
    from poolbench_steerer.plugin.kernel import steer_on_gpu

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rng = np.random.default_rng(0)
    vectors = torch.tensor(rng.standard_normal((8, WIDTH)), dtype=torch.float32)
    vectors[7] = 0
    hidden, residual = torch.tensor(rng.standard_normal((2, NUM_TOKENS, WIDTH))).to(dtype)
    hidden[3, 0], hidden[5, 5], hidden[6, 1], hidden[7, 1] = float("nan"), float("inf"), float("inf"), 1e30
    hidden[10, 2] = residual[20, 3] = float("nan")
    plain, kernel = (state_of(vectors, *way, dtype) for way in (("cpu", None), (device, steer_on_gpu)))
    if layer == 1:  # conditions are read at layer 0
        plain.spared_T[:] = kernel.spared_T[:] = torch.arange(len(plain.spared_T), dtype=torch.int32) % 3 % 2
    by_hand, by_kernel = hidden.clone(), hidden.to(device)
    steer_tokens(by_hand, residual if fused else None, plain, layer)
    steer_tokens(by_kernel, residual.to(device) if fused else None, kernel, layer)
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0, "rtol": 2**-7}
    torch.testing.assert_close(by_kernel.cpu(), by_hand, equal_nan=True, **tolerance)
    # A broken state has no score that means anything.
    sound = [token for token in range(NUM_TOKENS) if token not in (3, 5, 6, 7, 10, 20)]
    atol = 1e-4 if dtype == torch.float32 else 0.1  # edited states may round differently
    by_kernel_TK, by_hand_TK = kernel.scores_TK.cpu()[sound], plain.scores_TK[sound]
    torch.testing.assert_close(by_kernel_TK, by_hand_TK, equal_nan=True, rtol=0, atol=atol)
    assert plain.scores_TK[sound].isfinite().sum() > 20
    by_kernel_TD, by_hand_TD = kernel.states_TD.cpu()[sound], plain.states_TD[sound]
    torch.testing.assert_close(by_kernel_TD, by_hand_TD, equal_nan=True, **tolerance)
    assert plain.states_TD[sound].isfinite().all(dim=1).sum() > 5
    assert torch.equal(kernel.changed_LR.cpu(), plain.changed_LR)
    assert torch.equal(kernel.applied_LR.cpu(), plain.applied_LR)
    assert torch.equal(kernel.spared_LR.cpu(), plain.spared_LR)
    assert int(plain.spared_LR.sum()) > 0
    assert torch.equal(kernel.latest_LRP.cpu(), plain.latest_LRP)
    # A token may break twice behind the last block. Nobody reads the counts of row 0.
    assert torch.equal(kernel.broken_LR.cpu()[:, 1:] > 0, plain.broken_LR[:, 1:] > 0)
    assert int(plain.broken_LR[:, 1:].sum()) > 0
    assert int(kernel.applied_LR[:, [NUM_ROWS - 1, 2 * NUM_ROWS - 1]].sum()) == 0
