"""The probing design of one concept: folds, labelings and resamples, shared by all strategies and layers."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np

from poolbench.directions import permuted_labels
from poolbench.errors import CellError
from poolbench.statistics.bootstrap import group_weights
from poolbench.statistics.folds import MIN_GROUPS, grouped_folds
from poolbench.steps.prober import ProbeParams
from poolbench_prober.inputs.corpus import Passages, control_labels


@dataclass(frozen=True)
class Labelings:
    """The probes fitted on every training fold, one column per probe. Column 0 is the concept at the primary C."""

    labels_nK: np.ndarray
    c_K: np.ndarray  # inverse regularisation of each probe
    sensitivity: dict[float, int]  # C to column
    permuted: tuple[int, ...]  # columns with permuted labels
    controls: dict[str, int]  # control word to column


@dataclass(frozen=True)
class Design:
    """The part of D1 that is fixed before a vector is read."""

    train: Passages
    test: Passages | None  # test passages, None where there is no test split
    folds: np.ndarray  # fold of each train passage [n]
    labelings: Labelings
    train_weights: np.ndarray  # bootstrap weights over the groups of the train split [R, n]
    test_weights: np.ndarray  # the same of the test split
    error: CellError | None = None
    seed_folds: dict[int, np.ndarray] = field(default_factory=dict)  # the same with each further seed

    @classmethod
    def build(cls, train: Passages, test: Passages | None, params: ProbeParams) -> Self:
        """Build the design of a concept. If the concept cannot be probed, the design has an error instead of folds."""
        error = None
        try:
            folds, *others = (
                grouped_folds(train.groups, train.labels, params.folds, seed, min_groups=MIN_GROUPS)
                for seed in (params.seed, *params.fold_seeds)
            )
        except CellError as caught:
            folds, others, error = np.zeros(len(train.ids), dtype=int), [], caught
        test_groups = np.zeros(0) if test is None else test.groups
        return cls(
            train=train,
            test=test,
            folds=folds,
            labelings=_labelings(train, params),
            train_weights=_weights(train.groups, params),
            test_weights=_weights(test_groups, params),
            error=error,
            seed_folds=dict(zip(params.fold_seeds, others, strict=bool(others))),
        )


def _labelings(train: Passages, params: ProbeParams) -> Labelings:
    controls = control_labels(train.texts, train.labels, params.num_control_words, params.seed)
    generators = [np.random.default_rng((params.seed, number)) for number in range(params.num_permutations)]
    permuted = [permuted_labels(train.labels, train.pairs_P2, rng) for rng in generators]
    first = 1 + len(params.sensitivity_c)
    columns = [train.labels] * first + permuted + list(controls.values())
    other_c = [params.primary_c] * (len(permuted) + len(controls))
    first_control = first + len(permuted)
    return Labelings(
        labels_nK=np.stack(columns, axis=1).astype(np.float64),
        c_K=np.array([params.primary_c, *params.sensitivity_c, *other_c]),
        sensitivity={c: number + 1 for number, c in enumerate(params.sensitivity_c)},
        permuted=tuple(range(first, first_control)),
        controls={word: first_control + number for number, word in enumerate(controls)},
    )


def _weights(groups: np.ndarray, params: ProbeParams) -> np.ndarray:
    if len(groups) == 0:
        return np.zeros((params.num_bootstrap, 0), dtype=np.float32)
    return group_weights(groups, params.num_bootstrap, params.seed)
