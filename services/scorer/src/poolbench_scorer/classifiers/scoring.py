"""Score many texts by several scorers, with one pass of the layers that the scorers share."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import torch
from scipy.special import expit

from poolbench.cancellation import check_cancelled
from poolbench.contracts.tables import SCORES
from poolbench.steps.scorer import ScoreParams
from poolbench.telemetry.catalog import BATCH_SIZE
from poolbench_scorer.classifiers.scorer import Scorer
from poolbench_scorer.classifiers.windows import Window, length_batches, pad_ids, scoring_windows

Progress = Callable[[int, int, str], None]


def score_texts(
    scorers: Mapping[str, Scorer],
    texts: Sequence[str],
    params: ScoreParams = ScoreParams(),  # noqa: B008 (frozen)
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Return P(concept) of each text by each scorer.

    A text longer than 128 tokens is cut into even windows, and their probabilities are averaged. Equal texts are
    scored once, because weak steering often leaves a text unchanged. All models run in float32, so scores agree across
    batch sizes, orders and machines up to rounding.

    Args:
        texts: Texts to score. An empty text gets the score of an empty window.
        progress: Function that is called with the number of finished windows, of all windows, and a note.

    Returns:
        Scores by the name of the scorer, float64 [len(texts)] in [0, 1].
    """
    unique = sorted(set(texts))
    place = {text: index for index, text in enumerate(unique)}
    rows = np.array([place[text] for text in texts], dtype=np.int64)
    groups: dict[str, dict[str, Scorer]] = defaultdict(dict)
    for name, scorer in scorers.items():
        groups[scorer.encoder_id][name] = scorer
    scores: dict[str, np.ndarray] = {}
    for group in groups.values():
        scores |= _score_group(group, unique, params, progress)
    return {name: scores[name][rows] for name in scorers}


def _score_group(
    scorers: Mapping[str, Scorer], texts: Sequence[str], params: ScoreParams, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Return the scores [len(texts)] of scorers that share an encoder."""
    if not texts:
        return {name: np.zeros(0) for name in scorers}
    tokens = next(iter(scorers.values())).tokens
    windows: list[Window] = []
    owners: list[int] = []
    for row, content in enumerate(tokens.content(texts)):
        cut = scoring_windows(content)
        windows += [tokens.wrap(window) for window in cut]
        owners += [row] * len(cut)
    margins = _margins(scorers, windows, params, progress)
    counts = np.bincount(owners, minlength=len(texts))
    return {
        name: np.bincount(owners, expit(margins[name] / scorer.temperature), len(texts)) / counts
        for name, scorer in scorers.items()
    }


@torch.inference_mode()
def _margins(
    scorers: Mapping[str, Scorer], windows: Sequence[Window], params: ScoreParams, progress: Progress | None
) -> dict[str, np.ndarray]:
    """Return the logit differences [len(windows)] of scorers that share an encoder."""
    first = next(iter(scorers.values()))
    device = next(first.head.parameters()).device
    margins = {name: np.zeros(len(windows)) for name in scorers}
    done = 0
    for batch in length_batches(list(map(len, windows)), params.batch_tokens):
        check_cancelled()
        ids_BT, mask_BT = pad_ids([windows[index] for index in batch], device)
        states = first.encoder(ids_BT, mask_BT)
        for name, scorer in scorers.items():
            logits_BL = scorer.head(states, mask_BT).double()
            margins[name][batch] = (logits_BL[:, 1] - logits_BL[:, 0]).cpu().numpy()
        BATCH_SIZE.observe(len(batch), service="scorer")
        done += len(batch)
        if progress is not None:
            progress(done, len(windows), "windows")
    return margins


def scores_table(text_ids: Sequence[str], scores: Mapping[str, np.ndarray]) -> pa.Table:
    """Return SCORES: one row per text and scorer, sorted by scorer."""
    names = [name for name in scores for _ in text_ids]
    values = np.concatenate([*scores.values()]) if scores else np.zeros(0)
    return pa.table([list(text_ids) * len(scores), names, values], schema=SCORES)
