"""Pilots of probing configurations at several sizes against scikit-learn at the same solution.

    python bench/pilots.py [--smallest] [--rows N] [--many-rows N] [--width N] [--sklearn-folds N]

bench/README.md explains each figure.
"""

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from common import Clock, Parser, Spent, write_report
from probing.reference import TOLERANCES
from probing.tasks import Size, problem
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.preprocessing import StandardScaler

from poolbench.steps.prober import PilotParams, TaskParams
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing.pilots import Fold, folds_of, pilot_answers
from poolbench_prober.probing.targets import Targets

#: Each sample is this share of the set.
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
TARGET_S = 300.0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="vectors of two classes")
    parser.add_argument("--many-rows", type=int, default=4_000, help="vectors of five classes")
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--num-seeds", type=int, default=5)
    parser.add_argument("--sklearn-folds", type=int, default=1, help="folds of each size that scikit-learn fits")
    return parser.options(rows=960, many_rows=960, width=8, num_seeds=1)


def main() -> None:
    """Run the benchmark and write its report."""
    settings = parse()
    figures = {
        "two classes": compare(Size(settings.rows, settings.width, 2), settings),
        "five classes": compare(Size(settings.many_rows, settings.width, 5), settings),
    }
    two, five = figures.values()
    ratios = {
        "pilots.vs_sklearn": two["cpu_ratio"],
        "pilots.vs_sklearn_five_classes": five["cpu_ratio"],
        "pilots.within_target": TARGET_S / two["ours"]["wall_s"],
        "pilots.same_answers": min(figure["same_answers"] for figure in figures.values()),
    }
    write_report("pilots", settings, ratios, figures)


def compare(size: Size, settings: argparse.Namespace) -> dict[str, Any]:
    """Return seconds of all pilots on a drawn set by both sides.

    Scikit-learn's are scaled from a fraction of the folds, which has as many of each size.
    """
    drawn = problem(size, TaskParams())
    names = tuple(f"i{number:06d}" for number in range(size.rows))
    targets = Targets(names, tuple(map(str, range(size.classes))), drawn.values, np.arange(size.rows))
    sizes = tuple(round(share * size.rows) for share in SHARES)
    params = PilotParams(seeds=tuple(range(settings.num_seeds)), sizes=sizes)
    clock = Clock()
    answers = pilot_answers(targets, PooledVectors.from_matrix(drawn.vectors_nD), params)
    ours = clock.read()
    print(f"{size}: {len(params.seeds) * len(sizes) * params.folds} folds, ours {ours.wall_s:.1f} s", flush=True)
    folds = [fold for seed in params.seeds for fold in folds_of(targets, params, seed)]
    timed = [fold for at in sizes for fold in _evenly([fold for fold in folds if fold.size == at], settings)]
    wall_s, cpu_s, same, tolerances = 0.0, 0.0, list[float](), list[dict[str, Any]]()
    for fold in timed:
        predicted_m, spent, used = sklearn_fold(drawn.vectors_nD, drawn.values, fold, params)
        wall_s, cpu_s = wall_s + spent.wall_s, cpu_s + spent.cpu_s
        same.append(float(np.mean((predicted_m == drawn.values[fold.rows["test"]]) == _right(answers, fold))))
        tolerances.append({"size": fold.size, "seed": fold.seed, "fold": fold.number, **asdict(spent), "tol": used})
        print(f"  scikit-learn, {fold.size} instances: {spent.wall_s:.1f} s a fold", flush=True)
    scale = len(folds) / len(timed)
    return {
        "size": size._asdict(),
        "sizes": sizes,
        "folds": len(folds),
        "probes": len(folds) * len(params.c_values),
        "ours": asdict(ours),
        "scikit_learn": {"wall_s": scale * wall_s, "cpu_s": scale * cpu_s, "folds_timed": tolerances},
        "cpu_ratio": scale * cpu_s / ours.cpu_s,
        "wall_ratio": scale * wall_s / ours.wall_s,
        "same_answers": min(same),
    }


def _evenly(folds: Sequence[Fold], settings: argparse.Namespace) -> list[Fold]:
    """Return as many folds as the settings say, evenly spread over seeds and places."""
    places = (np.arange(settings.sklearn_folds) + 0.5) * len(folds) / settings.sklearn_folds
    return [folds[int(place)] for place in places]


def _right(answers: pa.Table, fold: Fold) -> np.ndarray:
    """Return which test instances of a fold ours got right, in the order of its rows."""
    rows = answers.to_pandas()
    rows = rows[(rows["seed"] == fold.seed) & (rows["size"] == fold.size) & (rows["fold"] == fold.number)]
    return rows.sort_values("instance_id")["right"].to_numpy(dtype=bool)


def sklearn_fold(
    vectors_nD: np.ndarray, values: np.ndarray, fold: Fold, params: PilotParams
) -> tuple[np.ndarray, Spent, list[float]]:
    """Return predictions for the test rows of a fold, the time for them, and `tol` at each C.

    `tol` is the loosest at which the gradient is as small as ours must be; what the search for it takes is not counted.
    """
    rows, clock = fold.rows, Clock()
    scaler = StandardScaler().fit(vectors_nD[rows["train"]])
    train, dev, test = (scaler.transform(vectors_nD[part]) for part in rows.values())
    spent = [clock.read()]
    best, best_score, used = np.zeros(0), -np.inf, list[float]()
    for c in params.c_values:
        for tolerance in TOLERANCES:
            clock = Clock()
            model = LogisticRegression(C=c, tol=tolerance, max_iter=100_000)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(train, values[rows["train"]])
            took = clock.read()
            if gradient_ratio(model, train, values[rows["train"]]) <= params.tolerance:
                break
        spent.append(took)
        used.append(tolerance)
        clock = Clock()
        on_dev = f1_score(values[rows["dev"]], model.predict(dev), average="macro")
        if on_dev > best_score:
            best, best_score = model.predict(test), on_dev
        spent.append(clock.read())
    return best, Spent(sum(part.wall_s for part in spent), sum(part.cpu_s for part in spent)), used


def gradient_ratio(model: LogisticRegression, vectors_nD: np.ndarray, codes: np.ndarray) -> float:
    """Return the norm of the gradient of C times the summed loss and half of the squared weights, over that at zero."""
    truth_nk = codes[:, None] == model.classes_
    shares_nk = np.full(truth_nk.shape, 1 / truth_nk.shape[1])
    predicted_nk = model.predict_proba(vectors_nD)
    if len(model.classes_) == 2:  # one column of weights
        truth_nk, shares_nk, predicted_nk = truth_nk[:, 1:], shares_nk[:, 1:], predicted_nk[:, 1:]

    def norm(residual_nk: np.ndarray, weights_Dk: np.ndarray) -> float:
        gradient_Dk = model.C * vectors_nD.T @ residual_nk + weights_Dk
        return float(np.hypot(np.linalg.norm(gradient_Dk), model.C * np.linalg.norm(residual_nk.sum(axis=0))))

    return norm(predicted_nk - truth_nk, model.coef_.T) / norm(shares_nk - truth_nk, 0 * model.coef_.T)


if __name__ == "__main__":
    main()
