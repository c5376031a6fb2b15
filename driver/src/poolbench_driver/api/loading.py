"""A run as a Python object, the comparison of two runs, and ranks over several runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.errors import ConfigError, NotFoundError, UnknownNameError
from poolbench_driver import records
from poolbench_driver.api.notebook import Board, Chart, Rows, Shown, View, part_of
from poolbench_driver.records import find_run, recall_concepts, without_copies

if TYPE_CHECKING:
    from poolbench.contracts import Row
    from poolbench_driver.comparison.changes import RunChanges
    from poolbench_driver.contract.evidence import TextGroup
    from poolbench_driver.contract.page import Answer, Page, Part
    from poolbench_driver.pages.boards.ranks import RanksView
    from poolbench_driver.vectors.card import Vector


def load(run: Path | str = "latest", *, output: Path | str = "runs") -> Run:
    """Load a run. A run of another machine is first copied from the object store.

    Args:
        run: Folder or id of the run, `latest`, or `<store>/runs/<id>` with the URI of an object store.
        output: Folder of the runs.

    Returns:
        The run, whose tables are read when they are used.

    Raises:
        NotFoundError: No run has this name.
        ConfigError: Another version of PoolBench wrote the run.
    """
    local = find_run(Path(output), str(run))
    return Run(local.path, local.id)


class Run(records.Run):
    """A run: its figures, the parts of its report, the texts behind its figures, and its directions.

    Properties and methods raise these errors:

    - NotFoundError: The run has not written the table yet.
    - IntegrityError: The table is damaged.
    - ConfigError: Another version of PoolBench wrote the run.
    """

    _page: tuple[int, Page] | None = None

    @property
    def results(self) -> Rows:
        """Return one row per figure. A figure that cannot be computed is null and has a status and a reason."""
        return self.table("results")

    def table(self, name: str) -> Rows:
        """Return a table of the run.

        Args:
            name: Name of the table, such as `results`, `curves` or `failures`.

        Raises:
            NotFoundError: The run has no such table; the message lists the tables that it has.
        """
        self._require(name)
        return Rows(self.tables[name])

    def _require(self, name: str) -> None:
        if name not in self.tables:
            names = ", ".join(self.tables) or "none: the same `poolbench-driver run` command writes them at its end"
            raise NotFoundError(
                f"run {self.id} (state: {self.state or 'unknown'}) has no table {name!r}; it has {names}"
            )

    @property
    def page(self) -> Page:
        """Return the report of the run as data: answer, board, pictures and parts."""
        from poolbench_driver.report.reading import read_page

        self._require("results")
        written_ns = self.file("results.parquet").stat().st_mtime_ns
        if self._page is None or self._page[0] != written_ns:
            self._page = written_ns, read_page(self)
        return self._page[1]

    @property
    def answer(self) -> View:
        """Return the answer of the run. Its headline is `answer.text`, and its part lists the limits of the answer."""
        from poolbench_driver.contract.page import Items

        return View([part_of(Items([problem.text for problem in self.page.problems]))], self.page.answer)

    @property
    def board(self) -> Board:
        """Return the board: one row per entrant, for example a pooling strategy, the best first."""
        return Board(self.page.board)

    @property
    def picture(self) -> Chart | None:
        """Return the main picture of the report, or None if the suite draws no picture."""
        return None if self.page.picture is None else Chart(self.page.picture)

    def passages(self, *, from_store: bool = False, **values: Any) -> Rows:
        """Return the probe scores of passages with their texts.

        Example: `passages(concept="contrast", split="test")`.

        Args:
            from_store: Read texts that the run did not keep (setting `evidence`) from the object store. This takes
                seconds.
            **values: One value per column, as in `Rows.where`.

        Returns:
            The table `passage_scores` with the column `text`. The text is null if it is not available, or if the
            concept is sensitive.

        Raises:
            UnknownNameError: A column does not exist, or no row has the value.
        """
        return self._with_texts("passage_scores", "passage_id", values, from_store)

    def texts(self, *, from_store: bool = False, **values: Any) -> Rows:
        """Return the scores of steered and unsteered texts, with the texts and their prompts.

        Args:
            from_store: Read texts that the run did not keep (setting `evidence`) from the object store. This takes
                seconds.
            **values: One value per column, as in `Rows.where`.

        Returns:
            The table `text_scores` with the columns `prompt` and `text`. They are null if the text is not available, or
            if the concept is sensitive.

        Raises:
            UnknownNameError: A column does not exist, or no row has the value.
        """
        return self._with_texts("text_scores", "text_id", values, from_store)

    def _with_texts(self, name: str, id_column: str, values: dict[str, Any], from_store: bool) -> Rows:
        import pyarrow as pa

        from poolbench_driver.contract.evidence import EVIDENCE

        table = self.table(name).where(**values).arrow
        recall_concepts(self)
        rows = table.to_pylist()
        keys = [None if (group := _group_of(row)) is None else (group, row[id_column]) for row in rows]
        texts = {((row["block"], row["origin"]), row["text_id"]): row for row in self.rows(EVIDENCE)}
        if from_store:
            texts = self._stored({key for key in keys if key} - texts.keys()) | texts
        at_hand = [key and texts.get(key) for key in keys]
        columns = {"prompt": [row and row["prompt"] for row in at_hand]} if name == "text_scores" else {}
        columns["text"] = [row and row["texts"][0]["text"] for row in at_hand]
        for column, entries in columns.items():
            table = table.append_column(column, pa.array(entries, pa.string()))
        return Rows(table)

    def _stored(self, keys: set[tuple[TextGroup, str]]) -> dict[Any, Row]:
        """Read texts from the object store. Return their rows by group and id."""
        from poolbench_driver.evidence import store_reader
        from poolbench_driver.job import prepare_again

        job = prepare_again(self)
        read = store_reader(job.plan, job.session.artifacts)
        groups = {group for group, _ in keys}
        return {
            (group, row["text_id"]): row
            for group in groups
            for row in read(group, [text_id for of_group, text_id in keys if of_group == group])
        }

    def behind(self, cell_id: str) -> View:
        """Show the evidence for a figure: its result row, the tests of its entrant, and the texts that were measured.

        Args:
            cell_id: The column `cell_id` of a row of `results`.

        Raises:
            NotFoundError: No figure has this `cell_id`.
        """
        from poolbench_driver.evidence import evidence_of

        return View(evidence_of(self, cell_id))

    def direction(
        self, concept: str, strategy: str | None = None, layer: int | None = None, construction: str | None = None
    ) -> Vector:
        """Return a direction of the run as a steering vector with its card, for `Cluster.steer`.

        Args:
            concept: The concept.
            strategy: Id of the pooling strategy; by default the one of the best direction.
            layer: Layer of the direction; by default the one of the best direction.
            construction: Construction of the direction, such as C1; by default the one that the run steered along.

        Raises:
            RestrictedError: The concept is sensitive, or the direction was made with passages of a sensitive concept.
            ConfigError: The object store of the cluster is not configured here.
            NotFoundError: The run has no such direction.
        """
        from poolbench_driver.cluster.session import open_artifacts
        from poolbench_driver.vectors.of_run import vector_of_run

        return vector_of_run(self, open_artifacts(), concept, strategy, layer, construction)

    def compare(self, other: records.Run | Path | str, **options: Any) -> Comparison:
        """Compare this run with another one; differences are the other run minus this run.

        Args:
            other: A run, its folder, or its id.
            **options: `across` (properties in which paired cells may differ: model, data, versions), `metrics` (to
                compare; by default all) and `seed` (of the bootstrap).

        Raises:
            UnknownNameError: Neither run has one of the metrics.
            ConfigError: The runs cannot be compared, or they have no cell in common.
        """
        return compare(self, other, output=self.path.parent, **options)

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.state})"

    def _repr_html_(self) -> str:
        if "results" not in self.tables:
            return View([part_of(heading=repr(self))])._repr_html_()
        picture = [] if self.page.picture is None else [self.page.picture]
        return View([part_of(*picture, self.page.board)], self.page.answer)._repr_html_()


def _group_of(row: Row) -> TextGroup | None:
    """Return the group of the text that a row of scores belongs to, or None if the concept is sensitive."""
    from poolbench.concepts import CONCEPTS
    from poolbench.contracts.wire import UNSTEERED
    from poolbench_driver.contract.evidence import TextGroup

    if row["concept"] and CONCEPTS.get(row["concept"]).sensitive:
        return None
    origin = row.get("name", "")
    return TextGroup("" if origin == UNSTEERED else row["concept"] or "", origin)


def _loaded(run: records.Run | Path | str, output: Path | str) -> records.Run:
    return run if isinstance(run, records.Run) else load(run, output=output)


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The changes from a first run to a second run, paired by cell, with intervals over concepts.

    Attributes:
        first: The first run.
        second: The second run.
        changes: Counts of changed cells, mean differences by metric and strategy, and changes of mean ranks.
    """

    first: records.Run
    second: records.Run
    changes: RunChanges

    @property
    def sentence(self) -> str:
        """Return one sentence that says how many cells changed."""
        from poolbench_driver.comparison import as_sentence

        return as_sentence(self.changes, self.first.id, self.second.id)

    def to_dict(self) -> dict[str, Any]:
        """Return the ids of the runs and the changes, as `poolbench-driver compare --json` prints them."""
        return {"first": self.first.id, "second": self.second.id, **asdict(self.changes)}

    def __str__(self) -> str:
        from poolbench_driver.comparison import as_markdown, as_tables

        return as_markdown(as_tables(self.changes), self.sentence)

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.comparison import changes_page

        page = changes_page([self.first, self.second], self.changes, everything=False)
        return page.answer, [part_of(*([page.board] if page.board.columns else [])), *page.parts]


def compare(
    first: records.Run | Path | str, second: records.Run | Path | str, *, output: Path | str = "runs",
    across: Iterable[str] = (), metrics: Sequence[str] | None = None, seed: int = 0,
) -> Comparison:  # fmt: skip
    """Compare two runs; differences are the second run minus the first.

    Args:
        first: The first run, its folder, or its id.
        second: The second run, its folder, or its id.
        output: Folder of the runs.
        across: Properties in which two paired cells may differ: `model`, `data` or `versions`.
        metrics: Metrics to compare; by default all.
        seed: Seed of the bootstrap.

    Raises:
        UnknownNameError: Neither run has one of the metrics, or `across` has an unknown name.
        ConfigError: The runs cannot be compared, or they have no cell in common.
    """
    from poolbench_driver.comparison import compare_runs, read_results

    first, second = _loaded(first, output), _loaded(second, output)
    rows = [read_results(run) for run in (first, second)]
    measured = {row["metric"] for run_rows in rows for row in run_rows}
    measured = {name for name in measured if not name.startswith("rank.")}  # of a run's strategies among themselves
    for name in metrics or ():
        if name not in measured:
            raise UnknownNameError("metric", name, measured)
    return Comparison(first, second, compare_runs(*rows, across=across, metrics=metrics, seed=seed))


@dataclass(frozen=True, repr=False)
class Ranks(Shown):
    """Ranks of the entrants over one or more runs, on one metric.

    Attributes:
        view: The ranks over all cells (`view.standings`), and by strategy family, concept family and model.
    """

    view: RanksView

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.pages.boards.rank_parts import rank_parts

        return None, list(rank_parts(self.view))


#: Columns of a figure, after what it is about.
_FIGURE = ("metric", "params", "value", "ci_low", "ci_high", "n", "status", "reason")


@dataclass(frozen=True, repr=False)
class Leaderboard(Shown):
    """The board of one run, or of several runs together.

    Attributes:
        runs: The runs, each once.
    """

    runs: Sequence[records.Run]

    @property
    def markdown(self) -> str:
        """Return the board as `poolbench-driver leaderboard` prints it."""
        from poolbench_driver.pages.text import markdown_of
        from poolbench_driver.report.reading import read_page
        from poolbench_driver.series import SeriesBoard

        return markdown_of(read_page(self.runs[0])) if len(self.runs) == 1 else SeriesBoard.of(self.runs).shown()

    def to_pylist(self) -> list[Row]:
        """Return the mean ranks, and the figures that the board shows, each with its block.

        Of one run also the figures over all blocks: they compare the entrants of this run alone.
        """
        from poolbench_driver.assemble import rank_rows
        from poolbench_driver.results import is_rank
        from poolbench_driver.series import SeriesBoard

        board, alone = SeriesBoard.of(self.runs), len(self.runs) == 1
        spec = board.spec
        measured = [row for row in board.rows if not is_rank(row)]
        figures = [row for row in measured if row["metric"] in spec.shown or (alone and row[spec.block] is None)]
        columns = (spec.entrant, spec.block, "model", "layer", *_FIGURE)
        return [{column: row.get(column) for column in columns} for row in (*rank_rows(measured, spec)[0], *figures)]

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.report.reading import read_page
        from poolbench_driver.series import SeriesBoard

        if len(self.runs) > 1:
            return None, SeriesBoard.of(self.runs).parts()
        page = read_page(self.runs[0])
        return page.answer, [part_of(page.board), *page.parts]


def leaderboard(*runs: records.Run | Path | str, output: Path | str = "runs") -> Leaderboard:
    """Return the board of one run, or of several together, for example of several models.

    Args:
        *runs: Runs, or their folders or ids; by default the latest run.
        output: Folder of the runs.

    Raises:
        NotFoundError: No run has this name.
        ConfigError: The runs cannot be compared.
    """
    return Leaderboard(without_copies(_loaded(run, output) for run in runs or ("latest",)))


def ranks(*runs: records.Run | Path | str, metric: str | None = None, output: Path | str = "runs") -> Ranks:
    """Rank the entrants over one or more runs, for example of several models. Budget and corpus must be the same.

    Args:
        *runs: Runs, or their folders or ids; by default the latest run.
        metric: Metric to rank by; by default the main metric of the suite.
        output: Folder of the runs.

    Returns:
        The ranks over all cells, and by strategy family, concept family and model.

    Raises:
        UnknownNameError: The runs have no ranks on this metric.
        ConfigError: The runs cannot be ranked together, or no concept has two entrants with a value.
    """
    from poolbench_driver.comparison import join_rows, read_results
    from poolbench_driver.pages.boards.ranks import build_ranks, ranked_metrics

    loaded = without_copies(_loaded(run, output) for run in runs or ("latest",))
    rows = join_rows([read_results(run) for run in loaded])
    metric = metric or loaded[0].suite.board.primary
    if metric not in (metrics := ranked_metrics(rows)):
        raise UnknownNameError("ranked metric", metric, metrics)
    view = build_ranks(rows, metric)
    if metric not in view.boards:
        raise ConfigError(f"{metric}: no concept has two strategies with a value in every model and layer")
    return Ranks(view)
