"""Adapters of every architecture that the extractor reads: untrained they change nothing, trained they do."""

from typing import Any

import pytest
import torch
from tests import zoo

from poolbench_driver.models.training import new_adapter

ARCHITECTURES = zoo.architectures()


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adapter_learns_and_can_be_merged(name: str) -> None:
    model = zoo.random_model(ARCHITECTURES[name])
    ids = torch.randint(5, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    adapted = new_adapter(model, rank=4, seed=0)

    def loss_of(logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())

    def read(some_model: Any) -> torch.Tensor:
        with torch.no_grad():
            return some_model.eval()(ids).logits

    base = read(zoo.random_model(ARCHITECTURES[name]))
    torch.testing.assert_close(read(adapted), base, rtol=0, atol=1e-5)
    optimizer = torch.optim.AdamW((p for p in adapted.parameters() if p.requires_grad), lr=1e-2)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(adapted.train()(ids).logits).backward()
        optimizer.step()
    tuned = read(adapted)
    assert loss_of(tuned) < loss_of(base)
    torch.testing.assert_close(read(adapted.merge_and_unload()), tuned, rtol=0, atol=1e-3)
    assert (tuned - base).abs().max() > 0.01
