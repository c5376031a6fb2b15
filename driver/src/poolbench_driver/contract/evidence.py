"""What a reader opens a cell of the results with: its row, the tables behind it, and the texts that were measured."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from poolbench.contracts import Row
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.page import Part
from poolbench_driver.contract.source import RowSource

#: Name of the table of the texts that a run keeps in its folder, each once however many cells show it.
EVIDENCE = "evidence"
#: Kind of the addresses of a passage's tokens: `tokens/<cell_id>/<text_id>`.
TOKENS = "tokens"
_SPAN = pa.struct([("start", pa.int32()), ("end", pa.int32())])
#: A text with the spans of it that are read; one that is read whole has none.
MARKED_TEXT = pa.struct([("text", pa.string()), ("spans", pa.list_(_SPAN))])
TEXTS = pa.schema(
    [
        ("block", pa.string()),  # concept or probing set
        ("origin", pa.string()),  # entrant that steered, or control that changed it; empty for a text as it was read
        ("text_id", pa.string()),
        ("prompt", pa.string()),  # the opening that a generated text continues
        ("texts", pa.list_(MARKED_TEXT)),  # two for a pair of texts
        ("vector_hash", pa.string()),  # receipt of a steered text: its vector,
        ("positions_changed", pa.int32()),  # how many positions that changed,
        ("positions_expected", pa.int32()),  # and how many it had to
    ]
)

#: What a note says where `OpenedCell.texts` does not return all texts that are shown.
NO_TEXTS = (
    " Ids stand in place of texts that are not at hand: the command of the run with `--evidence N` keeps them in its "
    "folder."
)
#: Texts that a cell shows where the configuration does not say how many are kept.
_SHOWN = 10


class TextGroup(NamedTuple):
    """Texts of one block and origin, as in `TEXTS`."""

    block: str
    origin: str = ""


#: Ids of texts by group.
TextIds = Mapping[TextGroup, Collection[str]]
#: Returns the rows of `TEXTS` that are at hand of a group, by id.
ReadTexts = Callable[[TextGroup, Collection[str]], Mapping[str, Row]]


@dataclass(frozen=True)
class OpenedCell:
    """A cell of the results that a reader opens.

    Attributes:
        row: The result row of the cell.
        config: The run's configuration.
        rows: Returns the rows of a table of the run with some values: `rows("words", entrant="a")`.
        texts: Returns the available texts of a group.
    """

    row: Row
    config: RunConfig
    rows: Callable[..., list[Row]]
    texts: ReadTexts

    @property
    def most(self) -> int:
        """Return the largest number of texts that the cell shows: the run's setting `evidence`, or 10 if that is 0."""
        return self.config.evidence or _SHOWN


class FeatureTexts(NamedTuple):
    """Texts whose tokens a reader opens by features of an autoencoder.

    Attributes:
        autoencoder: Key of the autoencoder in the object store.
        features: Numbers of the features.
        texts: The texts by their captions.
    """

    autoencoder: str
    features: Sequence[int]
    texts: Mapping[str, str]


def _no_texts(*_: object) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class Evidence:
    """The evidence of a suite for a cell that a reader opens.

    Attributes:
        parts: Returns the evidence for the cell from the run's tables, with the available texts of the cell.
        shown_texts: Yields group and id of the first texts that `parts` shows for each cell of a run's tables, up to a
            given number per cell.
        texts: Yields the texts of a plan with some ids as rows of `TEXTS`. Texts that must stay in the store are left
            out.
        features: Returns the features by which the tokens of a text behind a cell are read. Returns None if the tokens
            are read along the direction of the cell.
    """

    parts: Callable[[OpenedCell], Iterable[Part]] = _no_texts
    shown_texts: Callable[[Mapping[str, pa.Table], int], Iterator[tuple[TextGroup, str]]] = _no_texts
    texts: Callable[[Any, RowSource, TextIds], Iterator[Row]] = _no_texts
    features: Callable[[OpenedCell, str], FeatureTexts | None] = lambda cell, text_id: None
