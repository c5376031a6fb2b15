"""Submissions: scores and figures of a method that another program measured, as files that `verify` reads.

The models here are what a submission is checked with, and what its JSON schema is made from.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from pydantic import BeforeValidator, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic.json_schema import models_json_schema

from poolbench.config import StrictModel
from poolbench.contracts import Row
from poolbench.errors import InputError, shown
from poolbench.statuses import Status
from poolbench_driver.assemble import complete_row
from poolbench_driver.contract.abilities import ReadsScores
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.contract.metrics import metric_info
from poolbench_driver.contract.registry import SUITES
from poolbench_driver.contract.suite import SuiteInfo
from poolbench_driver.contract.verification import MOST_PROBLEMS, Check, Say, State
from poolbench_driver.records import Run
from poolbench_driver.records.folder import write_table
from poolbench_driver.records.run import CONFIG_FILE
from poolbench_driver.results import result_table

SUBMISSION, SCORES = "submission.json", "passage_scores.parquet"
#: Rows of scores that are checked at once, so that a large table takes little memory.
_BATCH = 10_000


def _whole(value: Any) -> Any:
    """Return 1.0 as 1, because JSON schemas take both for an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_WHOLE = BeforeValidator(_whole)
Layer = Annotated[int, Field(ge=0, le=10_000), _WHOLE]
#: Without control characters, because readers' terminals show them.
_SHOWN = r"^[^\x00-\x1f\x7f-\x9f]+$"
Text = Annotated[str, Field(max_length=200, pattern=_SHOWN)]


class _Submitted(StrictModel):
    """A part of a submission. Texts are not read as numbers, because its JSON schema refuses them too."""

    model_config = ConfigDict(strict=True)


class Method(_Submitted):
    """The method that was measured."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    """The name on a board."""
    summary: str = Field(max_length=500, pattern=_SHOWN)
    """What the method does, in one sentence."""
    link: str | None = Field(default=None, pattern=r"^https?://[!-~]{1,500}$")
    """Where code or a paper of the method is."""

    def __str__(self) -> str:
        return f"{self.name}, {self.summary}{f' ({self.link})' if self.link else ''}"


class Figure(_Submitted):
    """A figure that does not follow from scores of passages. A board says that it is not verified."""

    metric: Text
    """Id of a metric, such as `d2.best_gain`."""
    block: Text
    """What the figure was measured on: a concept of the run's settings, or a probing set."""
    layer: Layer | None = None
    """Layer that the method reads; null for a method without one."""
    value: FiniteFloat
    """The value, in the unit of the metric."""
    ci_low: FiniteFloat | None = None
    """Lower end of the 95 % interval."""
    ci_high: FiniteFloat | None = None
    """Upper end of the 95 % interval."""
    n: Annotated[int, Field(ge=1, lt=2**63), _WHOLE] | None = None
    """Number of items that the figure is computed from."""


class Submission(_Submitted):
    """The file `submission.json`."""

    version: Annotated[int, Field(ge=1, le=1), _WHOLE]
    """Version of this format."""
    method: Method
    model: Text
    """Model whose states the method reads, as the board names it."""
    model_revision: Text | None
    """Revision of the model; null if it is not known."""
    dataset: Text
    """Column `dataset` of the results of the run whose settings were copied."""
    dataset_revision: Text
    """Column `dataset_revision` of the same results."""
    figures: tuple[Figure, ...] = Field(default=(), max_length=100_000)
    """Figures that do not follow from scores. Those that do, such as `d1.auroc`, are computed by the reader."""


class PassageScore(_Submitted):
    """A row of `passage_scores.parquet`: the score of one passage at one layer."""

    concept: Text
    split: str = Field(pattern="^(train|test)$")
    passage_id: Text
    label: Annotated[int, Field(ge=0, le=1), _WHOLE]
    """1 if the passage has the concept, else 0."""
    group: str = Field(pattern="^[0-9]{1,6}$")
    """Number of the passages that are from one document or are rewrites of each other."""
    fold: Annotated[int, Field(ge=-1, le=100), _WHOLE]
    """Number of the fold, whose scores come from a fit on the other folds; -1 on the test split."""
    layer: Layer
    score: FiniteFloat
    """Higher for passages that have the concept. Only the order inside a fold counts."""


_ROWS = TypeAdapter(list[PassageScore])


def schema() -> dict[str, Any]:
    """Return the JSON schema of `submission.json`. `PassageScore` among its definitions is that of a row of scores."""
    _, definitions = models_json_schema([(Submission, "validation"), (PassageScore, "validation")])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Submission to PoolBench",
        "$ref": "#/$defs/Submission",
        **definitions,
    }


def read_submission(root: Path) -> Submission:
    """Return the content of `submission.json`. Raise InputError if it differs from the schema."""
    try:
        return Submission.model_validate_json((root / SUBMISSION).read_bytes())
    except ValidationError as error:
        raise _differs(SUBMISSION, error) from None


def _differs(file: str, error: ValidationError) -> InputError:
    issues = [f"{shown('.'.join(map(str, issue['loc'])))}: {issue['msg']}" for issue in error.errors()[:MOST_PROBLEMS]]
    return InputError(f"{file}: {'; '.join(issues)}; `poolbench-driver submit --schema` prints what is allowed")


def write_run(run: Run, submission: Submission, say: Say) -> list[Row]:
    """Write a submission as the folder of a run, so that boards and checks of runs read it. Return its result rows.

    Args:
        run: A run without a folder yet, in the folder of the submission.

    Raises:
        InputError: Scores or figures are not those of a run with these settings.
        ConfigError: The settings are damaged.
        UnknownNameError: A metric does not exist.
    """
    root, name = run.path.parent, submission.method.name
    config = load_run_config(root / CONFIG_FILE, {})
    if not (root / SCORES).is_file() and not submission.figures:
        raise InputError(f"the submission has neither {SCORES} nor figures")
    info = SUITES.get(config.suite)
    suite = info.load()
    computed = suite.metrics_of_scores if isinstance(suite, ReadsScores) else ()
    if stated := [figure.metric for figure in submission.figures if figure.metric in computed]:
        raise InputError(f"{stated[0]} is computed from {SCORES}: give the scores, and leave the figure out")
    rows = [_row(figure, name, info, config.concept_ids) for figure in submission.figures]
    run.path.mkdir()
    shutil.copyfile(root / CONFIG_FILE, run.file(CONFIG_FILE))
    if (root / SCORES).is_file():
        if not isinstance(suite, ReadsScores):
            raise InputError(f"the suite {config.suite} computes nothing from {SCORES}; state figures instead")
        settings = suite.with_scores(config, name).model_dump(mode="json")
        run.file(CONFIG_FILE).write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
        write_table(run, Path(SCORES).stem, _read_scores(root / SCORES, name))
        rows += suite.figures_of_scores(run, say)
    common = {
        "run_id": run.id,
        "suite": config.suite,
        "protocol": "corrected",
        "budget": config.budget.name,
        "model": submission.model,
        "model_revision": submission.model_revision,
        "dataset": submission.dataset,
        "dataset_revision": submission.dataset_revision,
    }
    table = result_table([complete_row(row, common) for row in rows])
    if len(table["cell_id"].unique()) < len(table):
        raise InputError(f"two figures of {SUBMISSION} are of one metric, block and layer; keep one")
    write_table(run, "results", table)
    return table.to_pylist()


def _row(figure: Figure, name: str, suite: SuiteInfo, concepts: Sequence[str]) -> Row:
    """Return the result row of a stated figure. Raise InputError for a value out of bounds, or an unknown concept."""
    info = metric_info(figure.metric)
    lows, highs = (info.low, figure.ci_low), (info.high, figure.ci_high)
    is_low = any(low is not None and figure.value < low for low in lows)
    if is_low or any(high is not None and figure.value > high for high in highs):
        raise InputError(f"{figure.metric} of {shown(figure.block)} is {figure.value}, outside its bounds or interval")
    if concepts and figure.block not in concepts:
        raise InputError(f"{shown(figure.block)} is not a concept of {CONFIG_FILE}, which names {', '.join(concepts)}")
    row = figure.model_dump(exclude={"block"}) | {"status": Status.OK}
    return row | {suite.board.entrant: name, suite.board.block: figure.block}


def _read_scores(file: Path, name: str) -> pa.Table:
    """Return the scores as a table of a run. Raise InputError for a row that differs from the schema, or repeats."""
    table = pq.ParquetFile(file).read()
    for batch in table.to_batches(max_chunksize=_BATCH):
        try:
            _ROWS.validate_python(batch.to_pylist())
        except ValidationError as error:
            raise _differs(SCORES, error) from None
    item = ["concept", "split", "passage_id", "layer"]
    if len(table.group_by(item).aggregate([])) < len(table):
        raise InputError(f"{SCORES} has two scores of a passage at a layer; keep one")
    layers_of_train = table.filter(pc.field("split") == "train")["layer"].unique()
    if len(layers_of_train) < max(1, len(table["layer"].unique())):
        raise InputError(f"{SCORES} needs scores of train passages at each of its layers")
    return table.append_column("strategy", pa.array([name] * len(table), pa.string()))


def stated_checks(submission: Submission) -> Iterator[Check]:
    """Yield a check for what only the maker of a submission knows: stated figures, and the model."""
    if submission.figures:
        metrics = ", ".join(sorted({figure.metric for figure in submission.figures}))
        note = f"{len(submission.figures)} figures are as their maker states them ({metrics})"
        yield Check("figures", State.UNCHECKED, note)
    else:
        yield Check.of("figures", [], f"none is stated: all follow from {SCORES}")
    yield Check("model", State.UNCHECKED, f"only its maker knows whether {submission.model} was read")
