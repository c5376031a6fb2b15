"""Which autoencoders are trained of each model, and for how long."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The autoencoders of a model.

    Attributes:
        architectures: Of relu, topk and jumprelu.
        widths: Numbers of features; every architecture is trained with each.
        l0: Features that a token shall have; relu and jumprelu reach it by their penalty, topk by its k.
        num_tokens: Tokens that are read.
        planted: Share of the texts that is planted, so that a planted corpus is not foreign to the autoencoder.
        dtype: Of the stored weights.
    """

    architectures: tuple[str, ...]
    widths: tuple[int, ...]
    l0: int
    num_tokens: int
    planted: float
    dtype: str


DEMO = Plan(("relu", "topk", "jumprelu"), (512, 2048), 24, 800_000, 0.5, "float16")
PRETRAINED = Plan(("topk", "jumprelu"), (2304, 9216), 48, 1_000_000, 0.0, "float32")


def plan_of(model: str) -> Plan:
    """Return the plan of a model: that of `demo`, or the one of pretrained models."""
    return DEMO if model == "demo" else PRETRAINED
