"""Names of steered models: `demo+contrast@.6` is the model `demo`, steered by the vector `contrast` at strength .6."""

import re
from dataclasses import dataclass
from typing import Self

import numpy as np

#: What the name of a vector consists of: `+` stands before names, `:` and `@` behind them.
NAME = r"[\w./-]+"
NUMBER = r"-?(?:\d+\.?\d*|\.\d+)"
_FORM = re.compile(rf"(?P<model>.+)\+(?P<name>{NAME})(?:@(?P<strength>{NUMBER}))?")


@dataclass(frozen=True)
class SteeredName:
    """The name of a model that is steered.

    Attributes:
        strength: Strength in the unit of the vector. None means the recommended strength.
    """

    model: str
    name: str
    strength: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the name of a steered model, or return None if the text has another form."""
        match = _FORM.fullmatch(text)
        if match is None:
            return None
        strength = match["strength"]
        return cls(match["model"], match["name"], None if strength is None else float(strength))

    def __str__(self) -> str:
        if self.strength is None:
            return f"{self.model}+{self.name}"
        digits = np.format_float_positional(self.strength, trim="-")
        digits = re.sub(r"^(-?)0[.]", r"\1.", digits)
        return f"{self.model}+{self.name}@{digits}"
