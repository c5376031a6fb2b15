"""The signals of the planted suite: where each one stands, and which strategies must and must not read it.

In most signals every passage has one left and one right word (`TWINS` of `poolbench_corpora.places.words`). The class
decides which word stands at the *place*, and which one elsewhere. A strategy that gives both words the same weight
learns nothing. A strategy that reads the place, and not the rest, learns everything. The expectations follow from the
definitions of the strategies alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from poolbench_corpora.places.passages import concept_id

#: Strategies that weigh every token of a passage alike (or nearly so), or reduce over all of them.
ALL_ALIKE = ("A1_mean", "A5_median", "A6_sum", "A7_random", "A8_unit_mean", "A10_mean_sqrt_len", "S1_attention")
EXTREMES = ("A2_max", "A3_min")
WINDOWS = ("W1_first_k", "W2_last_k", "W3_middle_k")
_WHOLE = (*ALL_ALIKE, *EXTREMES, "A4_norm_weighted", "W4_hierarchical")


@dataclass(frozen=True)
class Signal:
    """A planted signal, and which strategies must and must not detect the signal in the states after `block`."""

    id: str
    summary: str
    block: int = 0
    wins: tuple[str, ...] = ()  # strategies whose AUROC must be at least `judge.WIN`
    loses: tuple[str, ...] = ()  # strategies whose AUROC must be at most `judge.LOSE`, or that cannot read it at all
    texts: str = ""  # signal whose passages are read; its own by default

    @property
    def concept(self) -> str:
        """Return the id of the concept to which the passages of the signal belong."""
        return concept_id(self.texts or self.id)


def _without(names: Sequence[str], *left_out: str) -> tuple[str, ...]:
    return tuple(name for name in names if name not in left_out)


SIGNALS: tuple[Signal, ...] = (
    Signal(
        "dense",
        "every third noun is a left word, or a right one",
        wins=(
            *_without(_WHOLE, "A5_median"),
            "A9_position_weighted",
            "L1_pos_filtered",
            "L4_clause",
            "L6_sentence",
            "L7_subword_root",
        ),
        loses=("P1_last_token", "P3_first_content", "L3_entity"),
    ),
    Signal(
        "sparse",
        "one noun has a peak in one coordinate, which other words vary in",
        wins=("A2_max",),
        loses=(*ALL_ALIKE, "A3_min", *WINDOWS, "W4_hierarchical", "P1_last_token", "L3_entity"),
    ),
    Signal(
        "start",
        "the noun is among the first 16 tokens, in every second passage the sixteenth",
        wins=("W1_first_k",),
        loses=(*_WHOLE, "W2_last_k", "W3_middle_k", "P1_last_token", "L3_entity", "L7_subword_root"),
    ),
    Signal(
        "middle",
        "the noun is in the centred window of 16 tokens, in every second passage at one of its ends",
        wins=("W3_middle_k",),
        loses=(*_WHOLE, "W1_first_k", "W2_last_k", "P1_last_token", "P3_first_content"),
    ),
    Signal(
        "end",
        "the noun is the last token",
        wins=("P1_last_token", "W2_last_k", "W2_last_4", "W2_last_8"),
        loses=(*_WHOLE, "W1_first_k", "W3_middle_k", "P3_first_content", "L3_entity"),
    ),
    Signal(
        "edge",
        "the noun is the sixteenth token from the end",
        wins=("W2_last_k",),
        loses=(*_WHOLE, "W1_first_k", "W3_middle_k", "W2_last_4", "W2_last_8", "P1_last_token"),
    ),
    Signal(
        "sentence",
        "the noun stands in a sentence of three words; its counterpart in one of over twenty",
        wins=("L6_sentence", "L4_clause"),
        loses=(*_WHOLE, "P1_last_token", "P3_first_content", "L7_subword_root"),
    ),
    Signal(
        "entity",
        "it is a person's name; its counterpart is a determiner",
        wins=("L3_entity",),
        loses=(*_WHOLE, "L1_pos_filtered", "P1_last_token", "P3_first_content", "L7_subword_root"),
    ),
    Signal(
        "content",
        "it is a noun; its counterpart is a determiner",
        wins=("L1_pos_filtered",),
        loses=(*_WHOLE, "L3_entity", "P1_last_token", "P3_first_content", "L7_subword_root"),
    ),
    Signal(
        "syntax",
        "it is the second noun of a coordination; its counterpart is an object",
        wins=("L2_dependency_rel", "L8_svo"),
        loses=(*_WHOLE, "L1_pos_filtered", "L3_entity", "P1_last_token", "L7_subword_root"),
    ),
    Signal(
        "loud",
        "it has a state of three times the norm; its counterpart an ordinary one",
        wins=("A4_norm_weighted", "A8_unit_mean"),
        loses=(*_without(_WHOLE, "A4_norm_weighted", "A8_unit_mean"), "L1_pos_filtered", "L3_entity", "P1_last_token"),
    ),
    Signal(
        "xor",
        "one of two words is there, not both and not neither; block 0 holds each word by itself",
        loses=(*_without(_WHOLE, "A4_norm_weighted"), "A9_position_weighted", *WINDOWS, "P1_last_token", "L3_entity"),
    ),
    Signal(
        "xor_read",
        "the same texts; block 1 has read all earlier tokens and multiplies what it found",
        block=1,
        texts="xor",
        wins=("P1_last_token", "W2_last_k"),
        loses=("P3_first_content",),
    ),
)


def judged_strategies() -> list[str]:
    """Return the sorted ids of the strategies that win or lose on at least one signal."""
    return sorted({name for signal in SIGNALS for name in (*signal.wins, *signal.loses)})
