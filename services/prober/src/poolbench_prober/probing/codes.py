"""Measures of code lengths: the cost of sending the training labels of each seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from poolbench.contracts.measures import Measure
from poolbench.errors import CellError
from poolbench.statuses import Status
from poolbench.steps.prober import TaskParams
from poolbench_prober.probing.class_code import code_lengths
from poolbench_prober.probing.compression import CodeLengths
from poolbench_prober.probing.targets import Targets
from poolbench_prober.probing.value_code import value_code_lengths

_ATTRIBUTES = {
    "probe.compression": "compression",
    "probe.compression_floor": "floor",
    "probe.compression_unregularised": "unregularised",
    "probe.compression_published": "released",
    "probe.online_bits": "online_bits",
    "probe.uniform_bits": "uniform_bits",
}
CODE_METRICS = tuple(_ATTRIBUTES)
_NOT_RELEASED = "the released code has no code length of real values"


class Sent(NamedTuple):
    """Rows that are sent, and the seed of their order."""

    rows: np.ndarray
    seed: int


def code_measures(
    targets: Targets, matrix_nD: np.ndarray, params: TaskParams, sent: Sequence[Sent], fields: dict[str, Any]
) -> list[Measure]:
    """Return the metrics `CODE_METRICS`, means over the seeds; empty where code lengths are not requested."""
    if not params.compression:
        return []
    rows = np.concatenate([sample.rows for sample in sent])
    counts = {
        "n": int(np.mean([len(sample.rows) for sample in sent])),
        "num_groups": len(np.unique(targets.groups[rows])),
    }
    fields = {**fields, **counts}
    try:
        lengths = [_lengths(targets.take(sample.rows), matrix_nD[sample.rows], params, sample.seed) for sample in sent]
    except CellError as error:
        return [Measure.failed(name, error, **fields) for name in CODE_METRICS]
    return [_measure(name, lengths, fields) for name in CODE_METRICS]


def _lengths(targets: Targets, matrix_nD: np.ndarray, params: TaskParams, seed: int) -> CodeLengths:
    groups = np.unique(targets.groups, return_inverse=True)[1]
    settings: dict[str, Any] = {
        "c_values": params.compression_c,
        "plain_c": params.primary_c,
        "tolerance": params.tolerance,
        "seed": seed,
    }
    if targets.is_regression:
        return value_code_lengths(matrix_nD, targets.values, groups, **settings)
    return code_lengths(matrix_nD, targets.values, len(targets.classes), groups, **settings)


def _measure(name: str, lengths: Sequence[CodeLengths], fields: dict[str, Any]) -> Measure:
    optional_values = [getattr(seed_lengths, _ATTRIBUTES[name]) for seed_lengths in lengths]
    if None in optional_values:
        return Measure.null(name, Status.NOT_IMPLEMENTED, _NOT_RELEASED, **fields)
    values = [float(value) for value in optional_values]
    details: dict[str, Any] = {"values": values}
    if name == "probe.compression":
        details["chosen_C"] = [list(seed_lengths.c_of_blocks) for seed_lengths in lengths]
    if name == "probe.compression_unregularised":
        details["blocks_by_the_constant_predictor"] = [seed_lengths.num_replaced for seed_lengths in lengths]
    if name == "probe.uniform_bits":
        details["num_classes"] = [seed_lengths.num_classes for seed_lengths in lengths]
    return Measure.of(name, float(np.mean(values)), details=details, **fields)
