"""Autoencoders of the known model: the true one, ways to fail that are known of trained ones, and baselines."""

from collections.abc import Iterator

import numpy as np
import torch
from recipes.saes.synthetic.world import WIDTH, World
from torch import Tensor

from poolbench_extractor.features import Encoder, coordinates, random_twin

TRUE = "true"
#: Projection from which a feature counts as active: true magnitudes are at least 1.
_THRESHOLD = 0.6
_CPU = torch.device("cpu")


def encoders(world: World, seed: int) -> Iterator[Encoder]:
    """Yield the autoencoders.

    - `true`: each feature is one true direction.
    - `half`: half of the true directions are missing.
    - `split`: each true direction is two features; the side of a random plane says which of them is active.
    - `absorbed`: a parent is silent where its child is active, and the child stands for both.
    - `rotated`: each two true directions are replaced by their normalised sum and difference.
    - `random`: random directions of the same width and L0.
    - `coordinates`: the coordinates of the states.
    """
    generator = torch.Generator().manual_seed(seed)
    true_FD = torch.from_numpy(world.directions_FD)
    true = _thresholded(TRUE, true_FD)
    yield true
    half = torch.randperm(len(true_FD), generator=generator)[: len(true_FD) // 2].sort().values
    yield _thresholded("half", true_FD[half])
    yield _split(true_FD, torch.randn(len(true_FD), WIDTH, generator=generator))
    yield _absorbed(true_FD, world.parents, world.children)
    first_FD, second_FD = true_FD[::2], true_FD[1::2]
    turned_FD = torch.cat([first_FD + second_FD, first_FD - second_FD])
    yield _thresholded("rotated", turned_FD / turned_FD.norm(dim=1, keepdim=True))
    twin = random_twin(true, WIDTH, seed, _CPU)
    yield Encoder("random", twin.num_features, twin.encode)
    yield coordinates(WIDTH)


def _values(x_TD: Tensor, directions_FD: Tensor) -> Tensor:
    z_TF = x_TD @ directions_FD.T
    return z_TF * (z_TF > _THRESHOLD)


def _thresholded(name: str, directions_FD: Tensor) -> Encoder:
    return Encoder(
        name, len(directions_FD), lambda x_TD: _values(x_TD, directions_FD), lambda values_TF: values_TF @ directions_FD
    )


def _split(directions_FD: Tensor, planes_FD: Tensor) -> Encoder:
    def encode(x_TD: Tensor) -> Tensor:
        values_TF, above_TF = _values(x_TD, directions_FD), x_TD @ planes_FD.T > 0
        return torch.cat([values_TF * above_TF, values_TF * ~above_TF], dim=1)

    both_FD = torch.cat([directions_FD, directions_FD])
    return Encoder("split", len(both_FD), encode, lambda values_TF: values_TF @ both_FD)


def _absorbed(directions_FD: Tensor, parents: np.ndarray, children: np.ndarray) -> Encoder:
    decoder_FD = directions_FD.clone()
    decoder_FD[children] += directions_FD[parents]

    def encode(x_TD: Tensor) -> Tensor:
        values_TF = _values(x_TD, directions_FD)
        child_TC, parent_TC = values_TF[:, children], values_TF[:, parents]
        values_TF[:, children] = torch.where(child_TC > 0, (child_TC + parent_TC) / 2, 0)
        values_TF[:, parents] = torch.where(child_TC > 0, 0, parent_TC)
        return values_TF

    return Encoder("absorbed", len(directions_FD), encode, lambda values_TF: values_TF @ decoder_FD)
