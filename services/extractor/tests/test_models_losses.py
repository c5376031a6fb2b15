"""The loss with other states of a layer is the model's own, though the blocks below do not run again."""

from collections.abc import Callable

import numpy as np
import pytest
from services.extractor.tests.test_damage import check
from services.extractor.tests.test_features import KEEP
from services.extractor.tests.test_recovered import LOSS_RECOVERED, measured, plain_losses

from poolbench_extractor.features import coordinates
from poolbench_extractor.models.decoder import Decoder

from .architectures import CASES


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_architecture_goes_on_from_a_layer(
    name: str, decoder_of: Callable[..., Decoder], texts: list[str]
) -> None:
    decoder = decoder_of(name)
    (found,) = measured(decoder, texts, coordinates(decoder.width), layer=0, reading=KEEP)
    expected = [plain_losses(decoder, texts, 0, KEEP.sinks, each) for each in (None, np.zeros_like)]
    losses = [found[LOSS_RECOVERED].details[name] for name in ("loss", "loss_zero")]
    assert losses == pytest.approx(expected, rel=1e-5) and losses[0] != losses[1]


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_architecture_is_steered_as_by_a_hook(
    name: str, decoder_of: Callable[..., Decoder], texts: list[str]
) -> None:
    check(decoder_of(name), texts[:2], layer=0, strengths=(0.5,), first=1)
