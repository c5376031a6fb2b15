"""A run as Python reads it, two runs beside each other, and the ranks over several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poolbench.errors import ConfigError, NotFoundError, UnknownNameError
from poolbench.statuses import RunState
from poolbench_driver.api.shown import Board, Chart, Rows, Shown, View, part_of
from poolbench_driver.records import RunFolder, find_run
from poolbench_driver.waiting import waiting

if TYPE_CHECKING:
    from poolbench.contracts import Row
    from poolbench_driver.comparison.changes import RunChanges
    from poolbench_driver.contract.evidence import TextGroup
    from poolbench_driver.contract.page import Answer, Page, Part
    from poolbench_driver.pages.boards.ranks import RanksView
    from poolbench_driver.vectors.card import Vector


def load(run: Path | str = "latest", *, output: Path | str = "runs") -> Run:
    """Return a run; one of another machine is fetched from the object store first.

    Args:
        run: Its folder, its id, `latest`, or `<store>/runs/<id>` with the URI of an object store.
        output: Folder that runs lie in.

    Raises:
        NotFoundError: No run has this name.
        ConfigError: Another version of PoolBench wrote it.
    """
    return Run(find_run(Path(output), str(run)).path)


class Run(RunFolder):
    """A run: its figures, its page in parts, the texts behind its figures, its directions, and other runs beside it.

    What a run has not written yet raises NotFoundError, a damaged table IntegrityError, and one of another version of
    PoolBench ConfigError.
    """

    _page: tuple[int, Page] | None = None

    @property
    def state(self) -> RunState | None:
        """Return the state; None before the run has one."""
        state = self.read_state().get("state")
        return None if state is None else RunState(state)

    @property
    def results(self) -> Rows:
        """Return the result rows: one figure per row, null with status and reason where it cannot be computed."""
        return self.table("results")

    def table(self, name: str) -> Rows:
        """Return a table by name. Raise NotFoundError with the names that there are."""
        if name not in self.tables:
            names = ", ".join(self.tables) or "none: the same `poolbench-driver run` command writes them at its end"
            raise NotFoundError(
                f"run {self.id} (state: {self.state or 'unknown'}) has no table {name!r}; it has {names}"
            )
        return Rows(self.read_table(name))

    @property
    def page(self) -> Page:
        """Return what the suite says about the run, as data."""
        from poolbench_driver.report import page_of

        self.table("results")
        written_ns = self.file("results.parquet").stat().st_mtime_ns
        if self._page is None or self._page[0] != written_ns:
            with waiting(f"reading what run {self.id} says"):
                self._page = written_ns, page_of(self)
        return self._page[1]

    @property
    def answer(self) -> View:
        """Return the answer of the run (`text`), with what limits it."""
        from poolbench_driver.contract.page import Items

        return View([part_of(Items([problem.text for problem in self.page.problems]))], self.page.answer)

    @property
    def board(self) -> Board:
        """Return the board: what is compared, the best first."""
        return Board(self.page.board)

    @property
    def picture(self) -> Chart | None:
        """Return the picture of the first screen; None where the suite draws none."""
        return None if self.page.picture is None else Chart(self.page.picture)

    def passages(self, *, from_store: bool = False, **values: Any) -> Rows:
        """Return the probes' scores of passages with the texts, such as `passages(concept="contrast", split="test")`.

        Args:
            from_store: Read texts that the run did not keep (`evidence`) from the object store; this takes seconds.
            values: Values of columns, as `Rows.where` takes them.

        Returns:
            The table `passage_scores` and `text`: null for texts that are not at hand, and of sensitive concepts.
        """
        return self._with_texts("passage_scores", "passage_id", values, from_store)

    def texts(self, *, from_store: bool = False, **values: Any) -> Rows:
        """Return the scores of steered and unsteered texts (`text_scores`), with `prompt` and `text`. As `passages`."""
        return self._with_texts("text_scores", "text_id", values, from_store)

    def _with_texts(self, name: str, id_column: str, values: dict[str, Any], from_store: bool) -> Rows:
        import pyarrow as pa

        from poolbench_driver.contract.evidence import EVIDENCE

        table = self.table(name).where(**values).arrow
        self.recall_concepts()
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
        """Return texts of the object store by group and id."""
        from poolbench_driver.cluster.session import open_session
        from poolbench_driver.evidence import store_reader
        from poolbench_driver.job import prepare

        session = open_session()
        read = store_reader(prepare(self.config(), session, self.model()).plan, session.artifacts)
        groups = {group for group, _ in keys}
        return {
            (group, row["text_id"]): row
            for group in groups
            for row in read(group, [text_id for of_group, text_id in keys if of_group == group])
        }

    def behind(self, cell_id: str) -> View:
        """Return what stands behind a figure of `results`: its row, the tests of its entrant, and measured texts.

        Raise NotFoundError if no figure has this `cell_id`.
        """
        from poolbench_driver.evidence import evidence_of

        return View(evidence_of(self, cell_id))

    def direction(
        self, concept: str, strategy: str | None = None, layer: int | None = None, construction: str | None = None
    ) -> Vector:
        """Return the best direction of a concept as a steering vector with its card, for `Cluster.steer`.

        As `vector_of_run`. Raise ConfigError if the object store of the cluster is not known here.
        """
        from poolbench_driver.cluster.session import open_artifacts
        from poolbench_driver.vectors.of_run import vector_of_run

        return vector_of_run(self, open_artifacts(), concept, strategy, layer, construction)

    def compare(self, other: RunFolder | Path | str, **options: Any) -> Comparison:
        """Return what changed from this run to another, a run or what `load` takes; options are those of `compare`."""
        return compare(self, _folder(other, self.path.parent), **options)

    def __repr__(self) -> str:
        return f"Run({self.id!r}, {self.state})"

    def _repr_html_(self) -> str:
        if "results" not in self.tables:
            return View([part_of(heading=repr(self))])._repr_html_()
        picture = [] if self.page.picture is None else [self.page.picture]
        return View([part_of(*picture, self.page.board)], self.page.answer)._repr_html_()


def _group_of(row: Row) -> TextGroup | None:
    """Return the group of the text of a row of scores; None where it is of a sensitive concept."""
    from poolbench.concepts import CONCEPTS
    from poolbench.contracts.wire import UNSTEERED
    from poolbench_driver.contract.evidence import TextGroup

    if row["concept"] and CONCEPTS.get(row["concept"]).sensitive:
        return None
    origin = row.get("name", "")
    return TextGroup("" if origin == UNSTEERED else row["concept"] or "", origin)


def _folder(run: RunFolder | Path | str, output: Path | str) -> RunFolder:
    return run if isinstance(run, RunFolder) else find_run(Path(output), str(run))


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """What changed from the first of two runs to the second, paired by cell, with intervals over concepts."""

    first: RunFolder
    second: RunFolder
    changes: RunChanges

    @property
    def sentence(self) -> str:
        """Return in one sentence how many cells changed."""
        from poolbench_driver.comparison import as_sentence

        return as_sentence(self.changes, self.first.id, self.second.id)

    def to_dict(self) -> dict[str, Any]:
        """Return ids and changes, as `compare --json` prints them."""
        return {"first": self.first.id, "second": self.second.id, **asdict(self.changes)}

    def __str__(self) -> str:
        from poolbench_driver.comparison import as_markdown, as_tables

        return as_markdown(as_tables(self.changes), self.sentence)

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.comparison import changes_page

        page = changes_page([self.first, self.second], self.changes, everything=False)
        return page.answer, [part_of(*([page.board] if page.board.columns else [])), *page.parts]


def compare(
    first: RunFolder, second: RunFolder, *, across: Iterable[str] = (), metrics: Sequence[str] | None = None,
    seed: int = 0,
) -> Comparison:  # fmt: skip
    """Return what changed between two runs; differences are second minus first.

    Args:
        across: What may differ between cells that are paired: `model`, `data`, `versions`.
        metrics: Only these.
        seed: Of the resamples.

    Raises:
        UnknownNameError: Neither run has a metric, or `across` has another name.
        ConfigError: The runs cannot be compared, or have no cell in common.
    """
    from poolbench_driver.comparison import compare_runs, read_results

    rows = [read_results(folder) for folder in (first, second)]
    measured = {row["metric"] for run_rows in rows for row in run_rows}
    measured = {name for name in measured if not name.startswith("rank.")}  # of a run's strategies among themselves
    for name in metrics or ():
        if name not in measured:
            raise UnknownNameError("metric", name, measured)
    return Comparison(first, second, compare_runs(*rows, across=across, metrics=metrics, seed=seed))


@dataclass(frozen=True, repr=False)
class Ranks(Shown):
    """Ranks over runs on one metric (`view.standings`): overall, by family, concept family and model."""

    view: RanksView

    def _view(self) -> tuple[Answer | None, Sequence[Part]]:
        from poolbench_driver.pages.boards.rank_parts import rank_parts

        return None, list(rank_parts(self.view))


def ranks(*runs: RunFolder | Path | str, metric: str | None = None, output: Path | str = "runs") -> Ranks:
    """Return the ranks of the entrants over one or more runs of one budget and corpus, for example of several models.

    Args:
        runs: Runs, or what `load` takes; by default the latest.
        metric: A ranked metric; by default what the suite shows first.
        output: Folder that runs lie in.

    Raises:
        UnknownNameError: The runs are not ranked on the metric.
        ConfigError: The runs cannot be ranked together, or no concept has two entrants with a value.
    """
    from poolbench_driver.comparison import join_rows, read_results
    from poolbench_driver.contract.registry import SUITES
    from poolbench_driver.pages.boards.ranks import build_ranks, ranked_metrics

    rows = join_rows([read_results(_folder(run, output)) for run in runs or ("latest",)])
    metric = metric or SUITES.get(rows[0]["suite"]).board.primary
    if metric not in (metrics := ranked_metrics(rows)):
        raise UnknownNameError("ranked metric", metric, metrics)
    view = build_ranks(rows, metric)
    if metric not in view.boards:
        raise ConfigError(f"{metric}: no concept has two strategies with a value in every model and layer")
    return Ranks(view)
