"""What is reported of a scorer: AUROC, and calibration before and after its temperature."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from poolbench.steps.scorer import TrainParams
from poolbench.suites.measure import Measure
from poolbench_scorer.models.windows import Tokens, draw, training_windows
from poolbench_scorer.training.auroc import CI_METHOD, grouped_auroc
from poolbench_scorer.training.calibrate import brier_score, expected_calibration_error
from poolbench_scorer.training.examples import Passages


@dataclass(frozen=True)
class Validation:
    """Generation-like windows of the held-out passages."""

    windows: list[tuple[int, ...]]
    labels: np.ndarray
    groups: np.ndarray


@dataclass(frozen=True)
class Report:
    """Measures of a scorer; ``scorer.auroc`` comes first."""

    measures: list[Measure]

    def summary(self) -> dict[str, Any]:
        """The figures by short names, for ``report.json`` and HTTP; null where there is none, with the reason."""
        auroc = self.measures[0]
        if auroc.value is None:
            return {"auroc": None, "calibrated": False, "reason": auroc.reason}
        figures: dict[str, Any] = {"auroc": auroc.value, "auroc_ci": [auroc.ci_low, auroc.ci_high], "calibrated": True}
        for measure in self.measures[1:]:
            side = "after" if measure.params["calibrated"] else "before"
            figures[f"{measure.metric.removeprefix('scorer.')}_{side}"] = measure.value
        return figures


def build_validation(passages: Passages, tokens: Tokens, params: TrainParams) -> Validation:
    """Generation-like windows of passages; a text as short as they are gives one window."""
    windows, rows = [], []
    for row, content in enumerate(tokens.content(passages.texts)):
        rng = draw(params.seed, passages.pairs[row] or passages.ids[row])
        cut = dict.fromkeys(training_windows(content, rng, params.num_windows, params.window_tokens)[1:])
        windows += [tokens.wrap(window) for window in cut]
        rows += [row] * len(cut)
    return Validation(windows, passages.labels[rows], passages.groups[rows])


def report_on(found: np.ndarray, validation: Validation, temperature: float, params: TrainParams) -> Report:
    """``scorer.auroc`` with its interval, then ``scorer.ece`` and ``scorer.brier`` before and after calibration.

    Args:
        found: Margins of the validation windows [n], not yet divided by the temperature.
        validation: The windows.
        temperature: What was fitted on them.
        params: Seed and number of resamples.
    """
    labels = validation.labels
    auroc = grouped_auroc(found, labels, validation.groups, num_bootstrap=params.num_bootstrap, seed=params.seed)
    fields: dict[str, Any] = {
        "scorer": params.concept,
        "n": len(labels),
        "num_groups": auroc.num_groups,
        "seed": params.seed,
    }
    first = Measure.of("scorer.auroc", auroc.value, auroc.interval, ci_method=CI_METHOD, **fields)
    return Report([first, *calibration_measures(found, labels, temperature, fields)])


def calibration_measures(
    found: np.ndarray, labels: np.ndarray, temperature: float, fields: dict[str, Any]
) -> Iterable[Measure]:
    """Calibration error and Brier score of ``found`` [n] without and with the temperature."""
    for calibrated, divisor in ((False, 1.0), (True, temperature)):
        probabilities, params = expit(found / divisor), {"calibrated": calibrated}
        yield Measure.of("scorer.ece", expected_calibration_error(probabilities, labels), params=params, **fields)
        yield Measure.of("scorer.brier", brier_score(probabilities, labels), params=params, **fields)


def to_json(value: Any) -> bytes:
    """Readable JSON with sorted keys."""
    return json.dumps(value, indent=2, sort_keys=True).encode()
