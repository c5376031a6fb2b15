"""What stands behind a figure: its row, the tests of its entrant, the suite's tables, and texts that were measured.

A page's cells say what they open (`Cell.opens`): `cells/<cell_id>` is `evidence_of`, `entrants/<name>` is `entrant_of`.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from urllib.parse import unquote

import pyarrow as pa

from poolbench.config import EMBEDDING, EMBEDDING_INDEX, FINAL
from poolbench.contracts import Row
from poolbench.errors import NotFoundError, PoolbenchError, UnknownNameError
from poolbench.pooling.registry import STRATEGIES
from poolbench.storage import Artifacts
from poolbench_driver.cluster.services import Services
from poolbench_driver.config import RunConfig
from poolbench_driver.contract.abilities import ShowsEvidence
from poolbench_driver.contract.evidence import EVIDENCE, TEXTS, TOKENS, Evidence, OpenedCell, TextGroup
from poolbench_driver.contract.metrics import metric_info
from poolbench_driver.contract.page import Block, Cell, Column, Facts, Heads, Line, Page, Part, Table, with_cells
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.source import RowSource
from poolbench_driver.contract.suite import BoardSpec
from poolbench_driver.pages.boards.ranking import LEVEL
from poolbench_driver.pages.html import parts_html
from poolbench_driver.pages.plain import figure, is_rank, number
from poolbench_driver.pages.text import interval, listed
from poolbench_driver.pages.tokens import explained_blocks, feature_parts
from poolbench_driver.queries.embedding import Embedder, Reference
from poolbench_driver.records import Run, recall_concepts
from poolbench_driver.records.folder import write_table
from poolbench_driver.stages.stage import Plan
from poolbench_driver.statistics.wilcoxon import least_p

#: Reads texts from the object store, by group and id.
ReadStore = Callable[[TextGroup, Collection[str]], list[Row]]


def _evidence(config: RunConfig) -> Evidence:
    """Return the suite's evidence for a cell, or nothing if the suite has none."""
    suite = SUITES.get(config.suite).load()
    return suite.evidence if isinstance(suite, ShowsEvidence) else Evidence()


def keep_texts(plan: Plan, artifacts: Artifacts, tables: Mapping[str, pa.Table], run: Run) -> list[str]:
    """Write the texts that the cells of a run show into the folder of the run.

    The setting `evidence` is the number of texts per cell. If `evidence` is 0, remove the table of texts. Return a note
    that lists the concepts whose texts are not written, or no note.
    """
    if not plan.config.evidence:
        run.file(f"{EVIDENCE}.parquet").unlink(missing_ok=True)
        return []
    evidence, ids_by_group = _evidence(plan.config), defaultdict[TextGroup, set[str]](set)
    for group, text_id in evidence.shown_texts(tables, plan.config.evidence):
        ids_by_group[group].add(text_id)
    rows = list(evidence.texts(plan, RowSource(artifacts, {}, {}), ids_by_group))
    write_table(run, EVIDENCE, pa.Table.from_pylist(rows, TEXTS))
    lacking = sorted({group.block for group in ids_by_group} - {row["block"] for row in rows})
    if not lacking:
        return []
    return [f"no text of {listed(lacking)} is kept: texts of sensitive concepts stay in the object store"]


def store_reader(plan: Plan, artifacts: Artifacts) -> ReadStore:
    """Return a function that reads texts of a plan from the object store.

    The function serves cells whose texts are not in the folder of the run.
    """
    evidence, source = _evidence(plan.config), RowSource(artifacts, {}, {})

    def read(group: TextGroup, ids: Collection[str]) -> list[Row]:
        return list(evidence.texts(plan, source, {group: ids}))

    return read


def evidence_of(run: Run, cell_id: str, read_store: ReadStore | None = None) -> list[Part]:
    """Return the evidence for a cell of the results of a run, as parts of a page.

    Args:
        cell_id: Id of a result row, or of a row by published definitions.
        read_store: Reads the texts that the run's folder does not have. If None, these texts are shown by their ids.

    Raises:
        NotFoundError: The run has no such cell.
    """
    cell, board = _cell(run, cell_id, read_store), run.suite.board
    parts = _evidence(run.config).parts(cell)
    return [_figure(cell.row, board), *_tests(run, cell.row, board), *parts]


def _cell(run: Run, cell_id: str, read_store: ReadStore | None) -> OpenedCell:
    recall_concepts(run)
    row, config = _row(run, cell_id), run.config
    return OpenedCell(row, config, run.rows, partial(_texts, run, read_store))


def _row(run: Run, cell_id: str) -> Row:
    for table in ("results", "published"):
        for row in run.rows(table, cell_id=cell_id):
            return row
    raise NotFoundError(f"run {run.id} has no cell {cell_id!r}; the ids of its cells are in results.parquet")


def _texts(run: Run, read_store: ReadStore | None, group: TextGroup, ids: Collection[str]) -> Mapping[str, Row]:
    """Return texts by id: the texts of the run's folder, and missing texts from the object store if it can be read."""
    of_folder = {text["text_id"]: text for text in run.rows(EVIDENCE, **group._asdict())}
    missing = [text_id for text_id in ids if text_id not in of_folder]
    further = read_store(group, missing) if read_store is not None and missing else []
    return of_folder | {text["text_id"]: text for text in further}


def tokens_of(
    run: Run,
    cell_id: str,
    text_id: str,
    services: Services,
    read_store: ReadStore | None = None,
    artifacts: Artifacts | None = None,
) -> list[Part]:
    """Return the tokens of a text behind a cell, with features of an autoencoder, or with weights and contributions.

    Args:
        services: The services of a cluster, whose extractor explains the text.
        artifacts: The store of the cell's direction. Without the direction, tokens have weights only.

    Raises:
        NotFoundError: The run has no such cell, or the text is not available.
        PoolbenchError: The extractor refuses or does not answer.
    """
    cell, model = _cell(run, cell_id, read_store), run.model
    config, row = cell.config, cell.row
    layers = {EMBEDDING_INDEX: EMBEDDING} | ({} if model is None else {model.num_blocks: FINAL})
    reading = config.model_dump(include={"model", "include_bos", "add_bos", "sinks", "sink_ratio"})
    reading |= {"layer": layers.get(row["layer"], row["layer"])} | ({} if model is None else model.params)
    if (of_features := _evidence(config).features(cell, text_id)) is not None:
        further = {"autoencoder": of_features.autoencoder, "features": list(of_features.features)}
        body = {**reading, **further, "texts": list(of_features.texts.values())}
        return list(feature_parts(of_features, services.post("extractor", "explain", body)["texts"]))
    text_row = cell.texts(TextGroup(row["concept"] or ""), [text_id]).get(text_id)
    if text_row is None or row["strategy"] is None or row["layer"] is None:
        raise NotFoundError(f"run {run.id} has no text {text_id[:100]!r} at hand behind the cell {cell_id}")
    text = text_row["texts"][0]["text"]
    reads_words = STRATEGIES.get(row["strategy"]).reads_annotations
    reference = Reference([text], "the text") if reads_words else None
    vector = None if artifacts is None else _direction(run, row, artifacts)
    if vector is not None and model is not None and len(vector) != model.width:  # of several vectors in a row
        vector = None
    answer = Embedder(services, reading | {"strategy": row["strategy"]}, reference).explain(text, vector)
    note = f"{row['strategy']} at layer {row['layer']}."
    if vector is not None:
        note += f" The contribution of a token is its weight times its state along the direction of {row['concept']}."
    if reads_words:
        note += " Document frequencies come from this text alone, and in the run from all its passages."
    return [Part("tokens", f"Tokens of {text_id}", explained_blocks(text, answer["texts"][0]), note=note)]


def _direction(run: Run, row: Row, artifacts: Artifacts) -> list[float] | None:
    """Return the steering direction of a cell, or None if the store does not have the direction."""
    at = {name: row[name] for name in ("concept", "strategy", "layer")}
    for direction in run.rows("directions", **at):
        try:
            table = artifacts.read_table(direction["key"])
        except PoolbenchError:
            return None
        vectors = {entry["direction_id"]: entry["vector"] for entry in table.to_pylist()}
        return vectors.get(direction["construction"])
    return None


#: Characters of HTML that a file has room for beside its page.
_ROOM = 900_000


def opened_by(run: Run, page: Page) -> dict[str, list[Part]]:
    """Return the pages that the board of a run links to, by path, up to `_ROOM` characters of HTML.

    If the folder of the run has texts, the pages that these pages link to are included.
    """
    opened, room = dict[str, list[Part]](), _ROOM
    paths = list(paths_in([page.board]))
    for path in paths:
        kind, _, name = path.partition("/")
        if kind == TOKENS:  # which only a cluster knows
            continue
        parts = entrant_of(run, unquote(name)) if kind == "entrants" else evidence_of(run, name)
        room -= len(parts_html(parts))
        if room < 0:
            break
        opened[path] = parts
        if EVIDENCE in run.tables:
            paths += [further for part in parts for further in paths_in(part.blocks) if further not in paths]
    return opened


def paths_in(blocks: Iterable[Block]) -> dict[str, None]:
    """Return the paths that the cells of some blocks link to, in order and without duplicates."""
    paths: dict[str, None] = {}

    def noted(cell: Cell) -> Cell:
        paths.update({cell.opens: None} if cell.opens else {})
        return cell

    with_cells(blocks, noted)
    return paths


#: Columns that say what a figure is of, as far as it has them.
_SCOPE = (
    "entrant", "strategy", "concept", "neighbour", "task", "layer", "direction", "scorer", "strength", "alpha_unit",
    "opening_set", "split", "params", "protocol", "model", "dataset",
)  # fmt: skip


def _figure(row: Row, board: BoardSpec) -> Part:
    """Return the part of a page for a result row: its metric and cell, value, interval, and reason if it is null."""
    value = f"{row['value']:.6g}" if row["value"] is not None else f"none, {row['status']}"
    facts = {
        "definition": metric_info(row["metric"]).summary,
        "value": value,
        "95 % interval": interval((row["ci_low"], row["ci_high"]), ".6g"),
        "interval by": row["ci_method"],
        "reason": row["reason"],
        "n": row["n"],
        "groups": row["num_groups"],
        "coverage": row["coverage"],
        "seed": row["seed"],
        **{name.replace("_", " "): row[name] for name in _SCOPE},
    }
    names = [row["metric"], *(row[name] for name in dict.fromkeys((board.entrant, board.block)) if row[name])]
    layer = [] if row["layer"] is None else [f"layer {row['layer']}"]
    pairs = [(name, str(fact)) for name, fact in facts.items() if fact not in (None, "", "{}")]
    return Part("figure", ", ".join([*names, *layer]), [Facts(pairs)])


def _tests(run: Run, row: Row, board: BoardSpec) -> Iterator[Part]:
    """Yield the paired tests of a figure's entrant on the figure's metric, if entrants were ranked by this metric."""
    metric = next((name for name in board.ranked if name == row["metric"] or is_rank(row, name)), None)
    entrant = row[board.entrant]
    if not board.competing or metric is None or entrant is None or row["protocol"] != "corrected":
        return
    pairs = run.rows("pairwise", metric=metric, board="all")
    tests = [_from(entrant, pair) for pair in pairs if entrant in (pair["strategy"], pair["other"])]
    if not tests:
        return
    tests.sort(key=lambda test: (test["p"] is None, test["p"] or 0.0, test["other"]))
    heads: Heads = [
        "other", Column("verdict", is_text=True), f"{board.unit}s", "rank difference", "value difference", "effect",
        "p", "p (Holm)",
    ]  # fmt: skip
    specs = (("n", "d"), ("rank_difference", "+z.2f"), ("value_difference", "+.4g"), ("effect", "+z.2f"))
    figures = (*specs, ("p", ".2g"), ("p_holm", ".2g"))
    lines = [
        Line.of(test["other"], _verdict(test), *(number(test[name], spec) for name, spec in figures)) for test in tests
    ]
    num_blocks = max(test["n"] for test in tests)
    note = (
        f"{entrant} minus the other on {metric}, over each {board.unit} that has both: Wilcoxon's signed-rank test; "
        "effect is the matched-pairs rank-biserial correlation. A verdict needs a p below .05 after Holm's correction."
    )
    if least_p(num_blocks) > LEVEL:
        note += f" Over {num_blocks} no p can be below {least_p(num_blocks):.2g}, so that no two are distinguished."
    yield Part("tests", f"{entrant} against the others", [Table.of(heads, lines)], note=note)


def _from(entrant: str, pair: Row) -> Row:
    """Return a row of a paired test with `entrant` as the first of both. The table has each pair in one order only."""
    if pair["strategy"] == entrant:
        return pair
    signed = {
        name: None if pair[name] is None else -pair[name] for name in ("rank_difference", "value_difference", "effect")
    }
    return {**pair, **signed, "other": pair["strategy"]}


def _verdict(test: Row) -> str:
    if test["p"] is None:
        return f"{test['status']}: {test['reason']}"
    if test["p_holm"] is None or test["p_holm"] >= LEVEL or not test["effect"]:
        return "not distinguished"
    return "beats it" if test["effect"] > 0 else "is beaten by it"


def entrant_of(run: Run, name: str) -> list[Part]:
    """Return all figures of an entrant on the metrics of the board. Each figure links to its evidence.

    Raises:
        UnknownNameError: The run has no such entrant.
    """
    board = run.suite.board
    rows = run.rows("results", **{board.entrant: name})
    if not rows:
        entrants = run.tables["results"][board.entrant].unique().to_pylist()
        raise UnknownNameError("entrant", name, sorted(filter(None, entrants)))
    figures: dict[tuple[str, int | None], dict[str, Row]] = {}
    for row in rows:
        if not board.is_apart(row):
            figures.setdefault((row[board.block] or "", row["layer"]), {}).setdefault(row["metric"], row)
    present = {metric for of_line in figures.values() for metric in of_line}
    metrics = [metric for metric in dict.fromkeys((*board.shown, *board.ranked)) if metric in present]
    heads: Heads = [
        board.unit,
        "layer",
        *(Column(metric, definition=metric_info(metric).summary) for metric in metrics),
    ]
    lines = [
        Line.of(block, number(layer, "d"), *(figure(of_line.get(metric)) for metric in metrics))
        for (block, layer), of_line in sorted(figures.items(), key=lambda item: (item[0][0], item[0][1] or 0))
        if not of_line.keys().isdisjoint(metrics)
    ]
    ranks = [Line.of(metric, figure(row, ".2f")) for metric in board.ranked for row in rows if is_rank(row, metric)]
    blocks = [Table.of(heads, lines), *([Table.of(["ranked by", "mean rank"], ranks)] if ranks else [])]
    return [Part("entrant", name, blocks, note="Its figures on the metrics of the board. Each opens its cell.")]
