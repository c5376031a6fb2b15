"""Blocks, their pairs and the final norm of models that have no row."""

from types import SimpleNamespace

import pytest
import torch

from poolbench_steerer.plugin.decoder import Decoder, fuses


def model_of(num_blocks: int, **modules: torch.nn.Module) -> torch.nn.Module:
    """A model whose blocks have norms of their own and stand among `modules`."""
    block = torch.nn.Module()
    block.norm = torch.nn.LayerNorm(2)
    model = torch.nn.Module()
    model.inner = torch.nn.Module()
    model.inner.layers = torch.nn.ModuleList([block] * num_blocks)
    model.inner.experts = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(5))
    for name, module in modules.items():
        setattr(model.inner, name, module)
    return model


def config(num_hidden_layers: int, model_type: str = "unlisted") -> SimpleNamespace:
    return SimpleNamespace(model_type=model_type, num_hidden_layers=num_hidden_layers)


def test_blocks_are_found_by_number():
    model = model_of(3)
    assert Decoder(model, config(3)).blocks == list(model.inner.layers)
    with pytest.raises(RuntimeError, match="found: none"):
        Decoder(model, config(4))


def test_the_final_norm_is_the_models_own_not_a_blocks():
    norm = torch.nn.LayerNorm(2)
    stream = torch.tensor([[3.0, 1.0]])
    torch.testing.assert_close(Decoder(model_of(3, ln_f=norm), config(3)).final_norm(stream), norm(stream))
    for norms in ({}, {"norm": norm, "ln_f": norm}):
        with pytest.raises(RuntimeError, match=f"expected one final norm.*found {len(norms)}"):
            Decoder(model_of(3, **norms), config(3)).final_norm(stream)


class NormOfCohere(torch.nn.LayerNorm):
    def forward(self, stream: torch.Tensor, residual: torch.Tensor | None = None) -> tuple[torch.Tensor, None]:
        return super().forward(stream), residual


def test_a_norm_may_return_a_residual_too():
    stream = torch.tensor([[3.0, 1.0]])
    normed = Decoder(model_of(3, norm=NormOfCohere(2)), config(3, "cohere")).final_norm(stream)
    torch.testing.assert_close(normed, torch.nn.LayerNorm(2)(stream))


def test_the_row_of_an_architecture_is_followed():
    model = model_of(3, norm=torch.nn.LayerNorm(2), ln_f=NormOfCohere(2))
    assert Decoder(model, config(3, "stablelm")).fused == [False] * 3
    assert Decoder(model, config(3, "llama")).fused == [True] * 3
    with pytest.raises(RuntimeError, match=r"final norm in Module \(final_layernorm\), found 0"):
        Decoder(model, config(3, "phi")).final_norm(torch.ones(1, 2))


def test_blocks_that_return_one_tensor_or_have_no_source_are_taken_as_they_are():
    assert fuses(torch.nn.Linear(2, 2))
    namespace = {"torch": torch}
    exec("class Block(torch.nn.Module):\n  def forward(self, x, r):\n    x = x + r\n    return x, r", namespace)
    assert fuses(namespace["Block"]())
