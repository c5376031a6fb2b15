"""The page docs/results/holmes.md, from the runs of `python -m recipes.probing`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from recipes.published.flash import HEAD, agreement, chosen

from poolbench.config import EMBEDDING
from poolbench.contracts import Row
from poolbench.errors import NotFoundError
from poolbench_driver.contract.vega import drawn
from poolbench_driver.pages.text import block_markdown, paragraph, table
from poolbench_driver.records import Run
from poolbench_driver.suites.holmes.metrics import SCORE
from poolbench_driver.suites.holmes.rates import score_matrix
from poolbench_driver.suites.holmes.recorded import DEFINITIONS
from poolbench_driver.suites.holmes.report import by_layer, carried_table
from poolbench_driver.suites.holmes.view import Entrant, View, view_over

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "holmes.md"
#: Entrants that the board shows of each model: its best, and its last.
_SHOWN = 2
#: What static word vectors cannot tell apart, because both classes have the same words.
_ORDER = ("ewt-bigram-shift", "comparison-age", "comparison-number")


def page(runs: Sequence[Run], compared: Sequence[Run]) -> str:
    """Return the page: the joint board of several runs, and how far a share of the data keeps an order.

    Args:
        runs: Of several models, on equal sets.
        compared: Of one model: in whole, with a share of train, and with a share of dev and test too.
    """
    view = view_over(runs)
    return "\n".join([*_head(runs, view), *_board(view), *_pooling(runs), *_controls(view), *_flash(compared)])


def _head(runs: Sequence[Run], view: View) -> Iterator[str]:
    first, config = _rows(runs[0])[0], runs[0].config
    yield "# Linguistic probing on real sets\n"
    yield "<!-- written by recipes/probing -->\n"
    share, most = getattr(config, "flash", None) or 1.0, getattr(config, "flash_eval", None)
    yield paragraph(
        f"What {len(view.entrants)} entrants (model, pooling, layer) carry of language, on {len(view.sets)} probing "
        f"sets of real text that ship. Of train a share of {share:.4g} of the groups is probed, of dev and test "
        f"{'all' if most is None else f'at most {most}'} instances each. Code {first['code_version']}. Written by:"
    )
    option = "" if most is None else f" --flash-eval {most}"
    yield f"\n```console\n$ .venv/bin/python -m recipes.probing{option}\n```\n"
    yield paragraph(f"{view.answer()} {view.certainty()}")
    yield ""
    nulls: Counter[str] = Counter()
    for entrant in view.entrants:
        nulls.update(row["status"] for row in entrant.scores.values() if row["value"] is None)
    listed = [problem for problem in view.problems if " scores are null, " not in problem]
    if nulls:
        listed.append(f"null scores: {', '.join(f'{count:,} {status}' for status, count in nulls.most_common())}")
    for problem in listed:
        yield paragraph(f"- {problem}", "  ")
    yield ""


def _board(view: View) -> Iterator[str]:
    yield "## Board\n"
    yield paragraph(
        "Winning rates in percent: the share of comparisons with all other entrants, over all sets and by type of "
        f"phenomenon, with 95 % intervals from a bootstrap over phenomena. The {_SHOWN} best of each model, and "
        "its last. Leader: in how many sets the first entrant is significantly better and worse, instance by instance "
        "(McNemar's exact test, Holm over sets)."
    )
    yield ""
    lines = []
    for model in dict.fromkeys(_model(entrant) for entrant in view.entrants):
        ranking = [entrant for entrant in view.entrants if _model(entrant) == model and entrant.value() is not None]
        lines += [_line(view, entrant) for entrant in [*ranking[:_SHOWN], *ranking[_SHOWN:][-1:]]]
    yield table(
        ["entrant", "winning rate", "95 % interval", *view.types, "score", "sets", "collapsed", "leader"], lines
    )
    yield ""


def _line(view: View, entrant: Entrant) -> list[str]:
    counted = [str(sum(row["value"] is not None for row in entrant.scores.values())), str(entrant.num_collapsed)]
    cells = [*(entrant.rate(kind).text for kind in view.types), entrant.score().text, *counted, view.tested(entrant)]
    return [entrant.name, entrant.rate().text, entrant.rate().interval, *cells]


def _model(entrant: Entrant) -> str:
    return entrant.name.rsplit(" ", 2)[0]


def _pooling(runs: Sequence[Run]) -> Iterator[str]:
    view = view_over([runs[0]])
    yield "## Which pooling carries what\n"
    yield paragraph(
        f"The strategy of {view.model} that wins most among its strategies, with its winning rate in percent, by type "
        "of phenomenon and layer. Strategies with scores on fewer sets than others are left out."
    )
    yield "\n![best strategy by type of phenomenon and layer](holmes.svg)\n"
    yield from block_markdown(carried_table(view))
    yield ""


def _controls(view: View) -> Iterator[str]:
    """Yield what must hold: untrained models last, and static word vectors at chance where order alone decides."""
    yield "## What must hold\n"
    trained = [entrant.value() for entrant in view.entrants if not entrant.control and entrant.value() is not None]
    random = [entrant.value() for entrant in view.entrants if entrant.control and entrant.value() is not None]
    yield paragraph(
        f"- Mean winning rate of entrants with random weights {100 * np.mean(random):.0f} %, of the others "
        f"{100 * np.mean(trained):.0f} %.",
        "  ",
    )
    for name in _ORDER:
        scores = [(entrant.layer == EMBEDDING, entrant.scores.get(name, {}).get("value")) for entrant in view.pooled]
        static, other = (
            [value for is_static, value in scores if value is not None and is_static is side] for side in (True, False)
        )
        if static and other:
            yield paragraph(
                f"- {name}: macro-F1 of static word vectors {np.mean(static):.2f} (mean of {len(static)} entrants; "
                f"chance .50), of other layers at most {max(other):.2f}.",
                "  ",
            )
    yield ""


def picture(run: Run) -> str:
    """Return which pooling carries what in one run, as an SVG with colours of its own."""
    drawing = by_layer(view_over([run]))
    if drawing is None:
        raise NotFoundError(f"{run.id} has one strategy; the picture compares several")
    return drawn(drawing.spec)


def _flash(compared: Sequence[Run]) -> Iterator[str]:
    whole, *shares = (score_matrix(_rows(run)) for run in compared)
    yield "## What a share of the data keeps\n"
    yield paragraph(
        f"{len(whole[0])} entrants of one model on {len(whole[1])} sets: in whole, with the share of train, and with "
        "the smaller dev and test splits too. Rank changes are over the entrants."
    )
    yield ""
    lines = []
    costs = [_cost(run) for run in compared]
    for (names, sets, values), label, cost in zip(
        shares, ("share of train", "and of dev and test"), costs[1:], strict=True
    ):
        common = [name for name in whole[0] if name in names], [name for name in whole[1] if name in sets]
        pair = [chosen(board[2], *zip(board, common, strict=False)) for board in (whole, (names, sets, values))]
        for definition in DEFINITIONS:
            parts = [
                f"{100 * part / whole_:.0f} %" if whole_ else "" for part, whole_ in zip(cost, costs[0], strict=True)
            ]
            lines.append([label, definition, *agreement(*pair, definition), *parts])
    yield table(["of the data", *HEAD[1:], "texts read", "probe seconds"], lines)
    yield ""


def _rows(run: Run) -> list[Row]:
    return run.read_table("results").to_pylist()


def _cost(run: Run) -> tuple[float, float]:
    """Return instances that were read, and seconds of all probes."""
    sets = run.read_table("sets").to_pylist()
    seconds = sum(row["wall_s"] or 0.0 for row in _rows(run) if row["metric"] == SCORE)
    return sum(row["num_instances"] for row in sets), seconds
