"""The parts of the page of the published tables that come from their cells: source, arithmetic, definitions."""

from collections.abc import Iterable, Mapping
from math import exp, log
from statistics import fmean

from recipes.published.stated import Check, Meaning, stated
from recipes.published.table import check_rows, check_table, d1_board, disagreement_rows, same_cells

from poolbench.concepts import CONCEPTS
from poolbench_driver.contract.published import PublishedTable
from poolbench_driver.pages.text import paragraph, table
from poolbench_driver.suites.poolbench.published_table import published_table

#: The check whose disagreements are counted and not listed, because they are many.
_MANY = "p-values are those of the mean ranks beside them"


def parts() -> dict[str, str]:
    """Return the parts of the page by name."""
    published = published_table()
    checks = check_table(published)
    listed = [check for check in checks if check.meaning != Meaning.COPY and check.name != _MANY]
    many = next(check for check in checks if check.name == _MANY)
    disagree = [check for check in checks if check.disagreements]
    compared = check_rows(disagree)
    agree = [check for check in checks if not check.disagreements]
    blocks = (
        "The means and the ranks follow from the cells. The tests of differences on D1 do not fit together. They use "
        "33 of the 51 blocks of model and concept, which the source does not name: of all choices of 11 concepts, one "
        f"agrees with its mean ranks ({', '.join(stated().significance.concepts)}, in all three models)."
    )
    furthest = max(abs(log(figure.theirs / figure.ours)) for figure in many.disagreements)
    ranks = (
        f"The mean ranks give equal cells different ranks, the p-values do not. So {len(many.disagreements)} of the "
        f"{many.num_compared} p-values differ from those that the mean ranks beside them give by more than 1 %, and "
        f"by a factor of {exp(furthest):.1f} at most."
    )
    return {
        "source": _source(published),
        "checks": "\n\n".join(
            [
                paragraph(
                    f"{len(agree)} checks of {sum(check.num_compared for check in agree):,} figures found no "
                    f"disagreement: {'; '.join(check.name for check in agree)}. These did:"
                ),
                table(list(compared[0]), ([str(value) for value in row.values()] for row in compared)),
            ]
        ),
        "disagreements": "\n\n".join([paragraph(blocks), _disagreements(listed), paragraph(ranks)]),
        "ranks": _ranks(published),
        "leads": _leads(published),
        "columns": table(
            ("figure", "definition", "published", "corrected", "what else differs"),
            (
                (f"`{c.id}`", c.definition, _ours(c.ours, "published"), _ours(c.ours, "corrected"), c.differs)
                for c in published.columns
            ),
        ),
        "models": table(
            ("model", "on the leaderboard", "layer", "layers measured"),
            ((f"`{m.preset}`", m.label, str(m.best_layer), ", ".join(map(str, m.layers))) for m in published.models),
        ),
    }


def _source(published: PublishedTable) -> str:
    source, values = published.source, sum(cell.value is not None for cell in published.cells)
    return paragraph(
        f"The repository holds the cells of {source['title']} (version {source['version']}, {source['date']}): "
        f"{values:,} figures of {len(published.models)} models, {len(published.strategies)} strategies and "
        f"{len(published.concepts)} concepts. They come from {source['repository']}, commit "
        f"`{source['commit'][:7]}`, under its licence ({source['licence']}). They lie in "
        "`driver/src/poolbench_driver/suites/poolbench/published_table/data/`, with the files that each comes from."
    )


def _disagreements(checks: Iterable[Check]) -> str:
    names = ("figure", "theirs", "recomputed", "why")
    return table(names, ([row[name] for name in names] for row in disagreement_rows(checks)))


def _ranks(published: PublishedTable) -> str:
    board, lines = d1_board(published), {line.strategy: line for line in stated().leaderboard}
    strategies = {strategy.id: strategy for strategy in published.strategies}
    sentence = paragraph(
        "The leaderboard orders strategies by their mean D1 over concepts and models. We rank them within each concept "
        f"([why](../metrics.md#ranks)). The critical difference of {board.summary['num_blocks']} concepts is "
        f"{board.summary['critical_difference']:.3f}. Where most strategies lie below .5, a strategy that is always "
        "at .5, such as P2, ranks high."
    )
    ranks = table(
        ("strategy", "our mean rank", "95 % interval", "their rank", "their mean D1", "our name", "what differs"),
        (
            (
                name,
                f"{measure.value:.2f}",
                f"{measure.ci_low:.2f} to {measure.ci_high:.2f}",
                str(lines[name].rank),
                f"{lines[name].means['D1_auroc']:.5f}",
                f"`{ours}`" if (ours := strategies[name].ours) else "none",
                strategies[name].differs,
            )
            for name, measure in zip(board.entrants, board.measures, strict=True)
        ),
    )
    equal = ", ".join(f"{first} and {second} ({model})" for model, first, second in same_cells(published))
    return "\n\n".join([sentence, ranks, paragraph(f"All figures of these strategies are equal: {equal}.")])


def _leads(published: PublishedTable) -> str:
    leads = {name: _lead(published, name) for name in published.concepts}
    matched = sorted(filter(lambda name: CONCEPTS.get(name).matched_pairs, leads), key=lambda name: -leads[name])
    others = [name for name in leads if name not in matched]
    rows = []
    for title, names in [*((name, [name]) for name in matched), (f"the {len(others)} others (means)", others)]:
        values = [value for name in names for value in _d1(published, name)]
        below = f"{sum(value < 0.5 for value in values)} of {len(values)}"
        rows.append((title, f"{fmean(values):.3f}", below, f"{fmean(leads[name] for name in names):+.4f}"))
    share = sum(leads[name] for name in matched) / sum(leads.values())
    sentence = (
        f"The concepts with matched pairs make {100 * share:.0f} % of the lead of the first strategy over the mean."
    )
    return f"{table(('concept', 'mean D1', 'cells below .5', 'lead'), rows)}\n\n{paragraph(sentence)}"


def _d1(published: PublishedTable, concept: str, strategy: str | None = None) -> list[float]:
    return [
        cell.value
        for cell in published.cells
        if cell.column == "D1_auroc" and cell.concept == concept and cell.strategy == (strategy or cell.strategy)
        if cell.value is not None
    ]


def _lead(published: PublishedTable, concept: str) -> float:
    return fmean(_d1(published, concept, "W4_hierarchical")) - fmean(_d1(published, concept, "A1_mean"))


def _ours(metrics: Mapping[str, str], protocol: str) -> str:
    return f"`{metrics[protocol]}`" if protocol in metrics else "none"
