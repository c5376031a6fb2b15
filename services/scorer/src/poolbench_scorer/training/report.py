"""The report of a scorer: AUROC, and calibration without and with the temperature."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit

from poolbench.contracts.measures import Measure
from poolbench.statistics.auroc import auroc, auroc_resamples
from poolbench.statistics.bootstrap import group_weights, percentile_interval
from poolbench.steps.scorer import TrainParams
from poolbench.word_rules import word_rule
from poolbench_scorer.classifiers.windows import BaseTokenizer, draw, training_windows
from poolbench_scorer.training.examples import LabelledPassages


@dataclass(frozen=True)
class Validation:
    """Windows of held-out passages, as long as generated texts."""

    windows: list[tuple[int, ...]]
    labels: np.ndarray
    groups: np.ndarray


@dataclass(frozen=True)
class Report:
    """Measures of a scorer. The first is `scorer.auroc`."""

    measures: list[Measure]

    def summary(self) -> dict[str, Any]:
        """Return the measured values by short names, for `report.json` and HTTP.

        If there are no values, `auroc` is None, and `reason` says why.
        """
        auroc = self.measures[0]
        if auroc.value is None:
            return {"auroc": None, "calibrated": False, "reason": auroc.reason}
        figures: dict[str, Any] = {"auroc": auroc.value, "auroc_ci": [auroc.ci_low, auroc.ci_high], "calibrated": True}
        for measure in self.measures[1:]:
            side = "after" if measure.params["calibrated"] else "before"
            figures[f"{measure.metric.removeprefix('scorer.')}_{side}"] = measure.value
        return figures


def build_validation(passages: LabelledPassages, tokens: BaseTokenizer, params: TrainParams) -> Validation:
    """Cut passages into windows as long as generated texts.

    Equal windows of a passage are used once, so a short text gives one window. If the concept has a word rule, the rule
    labels the windows. A window without a label by the rule keeps the label of its passage.
    """
    windows, rows, labels = [], list[int](), list[int]()
    rule = None if params.rule is None else word_rule(params.concept, params.rule)
    for row, content in enumerate(tokens.content(passages.texts)):
        rng = draw(params.seed, passages.pairs[row] or passages.ids[row])
        cut = dict.fromkeys(training_windows(content, rng, params.num_windows, params.window_tokens)[1:])
        windows += [tokens.wrap(window) for window in cut]
        rows += [row] * len(cut)
        by_rule = [None if rule is None else rule.label(tokens.text(window)) for window in cut]
        labels += [int(passages.labels[row]) if label is None else label for label in by_rule]
    return Validation(windows, np.array(labels), passages.groups[rows])


def report_on(found: np.ndarray, validation: Validation, temperature: float, params: TrainParams) -> Report:
    """Return the AUROC, and the ECE and Brier score without and with the temperature.

    Args:
        found: Margins of the windows [n], not divided by the temperature.
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
    """Yield the ECE and the Brier score of the margins `found` [n], without and with the temperature."""
    for calibrated, divisor in ((False, 1.0), (True, temperature)):
        probabilities, params = expit(found / divisor), {"calibrated": calibrated}
        yield Measure.of("scorer.ece", expected_calibration_error(probabilities, labels), params=params, **fields)
        yield Measure.of("scorer.brier", brier_score(probabilities, labels), params=params, **fields)


def to_json(value: Any) -> bytes:
    """Return indented JSON with sorted keys."""
    return json.dumps(value, indent=2, sort_keys=True).encode()


CI_METHOD = "bootstrap over groups, percentile"


class Auroc(NamedTuple):
    """An AUROC with its interval. The interval is None if too few resamples have both classes."""

    value: float
    interval: tuple[float, float] | None
    num_groups: int


def grouped_auroc(
    scores: np.ndarray, labels: np.ndarray, groups: np.ndarray, *, num_bootstrap: int, seed: int
) -> Auroc:
    """Return the AUROC with a percentile interval from a bootstrap over `groups` [n].

    Within a resample, copies of a group are not compared with each other.
    """
    samples = auroc_resamples(labels, scores, group_weights(groups, num_bootstrap, seed), groups=groups)
    return Auroc(auroc(labels, scores), percentile_interval(samples), int(np.unique(groups).size))


#: Bounds of the temperature. Without the lower one, a separable validation set leads to unbounded confidence.
TEMPERATURES = (0.5, 10.0)


def fit_temperature(margins: np.ndarray, labels: np.ndarray) -> float:
    """Return the temperature T that minimises the NLL of `sigmoid(margin / T)`, or 1 if T would raise the ECE.

    Args:
        margins: Logit of the concept minus the logit of its absence [n], on texts that were not used for training.

    Reference: Guo et al. (2017), "On Calibration of Modern Neural Networks", section 4.2.
    """
    signed = margins * np.where(labels == 1, 1.0, -1.0)
    minimum = minimize_scalar(
        lambda log_t: np.logaddexp(0, -signed / np.exp(log_t)).mean(),
        bounds=tuple(np.log(TEMPERATURES)),
        method="bounded",
    )
    temperature = float(np.exp(minimum.x))
    before = expected_calibration_error(expit(margins), labels)
    after = expected_calibration_error(expit(margins / temperature), labels)
    return temperature if after <= before else 1.0


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray, num_bins: int = 10) -> float:
    """Return the mean gap between P(concept) and the observed frequency over bins, weighted by bin size.

    Reference: Naeini et al. (2015), "Obtaining well calibrated probabilities using Bayesian binning". Our bins have
    equal counts instead of equal widths, because trained classifiers leave the middle bins nearly empty.
    """
    order = np.argsort(probabilities, kind="stable")
    bins = np.array_split(order, min(num_bins, len(order)))
    gaps = [len(one) * abs(probabilities[one].mean() - labels[one].mean()) for one in bins]
    return float(sum(gaps) / len(order))


def brier_score(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean squared difference between P(concept) [n] and the labels, 1 or 0 [n].

    Reference: Brier (1950), "Verification of forecasts expressed in terms of probability". Our value is half of
    Brier's, as is usual for two classes.
    """
    return float(np.mean((probabilities - labels) ** 2))
