"""The scorer's tasks: train, gate, score."""

from __future__ import annotations

from collections import OrderedDict

from poolbench.contracts.tables import TEXTS, require_columns
from poolbench.contracts.tasks import Task
from poolbench.errors import InputError
from poolbench.runtime.taskio import TaskIO
from poolbench.storage.base import ObjectStore
from poolbench_scorer import cost
from poolbench_scorer.config import GateParams, ScoreParams, TrainParams, parse_params
from poolbench_scorer.gate import judge_scorer
from poolbench_scorer.models.scorer import Scorer, load_scorer, pick_device
from poolbench_scorer.models.scoring import score_texts, scores_table
from poolbench_scorer.models.shelf import point_at
from poolbench_scorer.training.run import run_training

#: A concept's own scorer, those of its two neighbours, and one more.
KEPT_SCORERS = 4
_KEPT: OrderedDict[tuple[str, ...], Scorer] = OrderedDict()  # by content; tasks run one at a time


def handle_train(task: Task, io: TaskIO, store: ObjectStore) -> None:
    """``scorer.train``: passages/scorer -> scorer (files), measures; points the concept at its new scorer."""
    params = parse_params(TrainParams, task.params)
    if io.missing:
        passages = io.table("passages/scorer")
        cost.require_training(passages.num_rows, params, cost.TASK)
        trained = run_training(passages, params, io.progress)
        if "scorer" in io.missing:
            io.write_files("scorer", trained.files, meta={"concept": params.concept, "base": params.base})
        if "measures" in io.missing:
            io.write_table("measures", trained.measures)
    point_at(store, task.outputs["scorer"], params)


def handle_gate(task: Task, io: TaskIO) -> None:
    """``scorer.gate``: scorer, passages/test, continuations -> measures."""
    params = parse_params(GateParams, task.params)
    scorer = read_scorer(io, "scorer")
    io.write_table("measures", judge_scorer(scorer, io.table("passages/test"), io.table("continuations"), params))


def handle_score(task: Task, io: TaskIO) -> None:
    """``scorer.score``: scorer/<concept> and texts/<name>, many of each -> scores/<name> with every scorer.

    The texts of all missing outputs go through the encoder together.
    """
    params = parse_params(ScoreParams, task.params)
    roles = sorted(role for role in task.inputs if role.startswith("scorer/"))
    if not roles:
        raise InputError("scorer.score without scorers: give inputs named scorer/<concept>")
    tables = {role: io.table(f"texts/{role.removeprefix('scores/')}") for role in sorted(io.missing)}
    for role, table in tables.items():
        require_columns(table, TEXTS, role.replace("scores/", "texts/", 1))
    scorers = {role.removeprefix("scorer/"): read_scorer(io, role) for role in roles}
    texts = [text for table in tables.values() for text in table["text"].to_pylist()]
    cost.require_scoring(texts, cost.TASK)
    scores = score_texts(scorers, texts, params, io.progress)
    first = 0
    for role, table in tables.items():
        part = {name: values[first : first + table.num_rows] for name, values in scores.items()}
        io.write_table(role, scores_table(table["text_id"].to_pylist(), part))
        first += table.num_rows


def read_scorer(io: TaskIO, role: str) -> Scorer:
    """The scorer of a task's input; the last few are kept, because a run's tasks ask for the same ones in turn."""
    files = io.manifest(role).files
    content = tuple(sorted(entry.sha256 for entry in files.values()))
    if content not in _KEPT:
        _KEPT[content] = load_scorer(lambda name: io.file(role, name), list(files), pick_device())
    _KEPT.move_to_end(content)
    while len(_KEPT) > KEPT_SCORERS:
        _KEPT.popitem(last=False)
    return _KEPT[content]
