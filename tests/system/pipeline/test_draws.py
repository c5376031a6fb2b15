"""Every shuffle, split, subsample, bootstrap and permutation, and the folds that prober and audit share."""

import ast
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow.compute as pc
import pytest
from tests.pages import REPOSITORY, tracked

from poolbench.concepts import CONCEPTS
from poolbench.statistics.bootstrap import group_weights
from poolbench.statistics.folds import drawn_splits, grouped_folds
from poolbench.steps.prober import ProbeParams
from poolbench_corpora.audit import audit
from poolbench_corpora.audit.training import TEXT_FEATURES
from poolbench_corpora.planted import build_planted
from poolbench_prober.d1.core import probe_cell
from poolbench_prober.d1.design import Design
from poolbench_prober.inputs.corpus import Passages
from poolbench_prober.inputs.vectors import PooledVectors
from poolbench_prober.probing.compression import dealt_folds

SOURCES = ("shared/src", "corpus/src", "driver/src", *(f"services/{name}/src" for name in
           ("extractor", "pooler", "prober", "steerer", "scorer")))  # fmt: skip
#: Methods of random generators.
METHODS = {
    "permutation", "permuted", "shuffle", "sample", "choice", "choices", "integers", "randint", "normal",
    "standard_normal", "random", "multinomial",
}  # fmt: skip
#: Functions that draw, ours and those of libraries.
FUNCTIONS = {
    "bootstrap_counts", "group_weights", "group_mean_resamples", "mean_interval", "grouped_folds", "drawn_splits",
    "dealt_folds", "permuted_labels", "split_of", "thinned", "StratifiedKFold", "train_test_split", "randperm", "randn",
}  # fmt: skip
#: What stays together: groups are connected components of matched pair and document, unless said otherwise.
KEEPS_GROUPS = {
    "poolbench.directions.registry:permuted_labels": "matched pairs: labels are swapped inside a pair",
    "poolbench.directions.registry:null_directions": "matched pairs, as permuted_labels",
    "poolbench.statistics.bootstrap:group_mean_resamples": "the groups it is given",
    "poolbench.statistics.folds:grouped_folds": "the groups it is given",
    "poolbench.statistics.folds:drawn_splits": "the groups it is given",
    "poolbench.statistics.bootstrap:group_weights": "the groups it is given",
    "poolbench.statistics.response:split_openings": "openings, each with its samples",
    "poolbench_driver.find.selection:_curve": "openings, each with its samples",
    "poolbench_corpora.audit.confounds:figures": "groups, the resamples of D1",
    "poolbench_corpora.audit.training:Training.of": "groups, the folds of D1",
    "poolbench_corpora.checks:partition": "documents",
    "poolbench_corpora.own.forecast:_gate": "groups",
    "poolbench_corpora.planted.build:_CorpusBuilder.rows": "documents",
    "poolbench_corpora.planted.build:_CorpusBuilder._document_rows": "documents",
    "poolbench_corpora.probing.samples:_order": "groups of the set",
    "poolbench_corpora.probing.data:as_passages": "groups of the set",
    "poolbench_driver.statistics.pilots:sign_share": "groups of the set",
    "poolbench_driver.suites.holmes.plan:resolve": "groups of the set",
    "poolbench_driver.suites.holmes.rates:winning_rates": "phenomena",
    "poolbench_driver.suites.holmes.correlations:rates_by_type": "phenomena, within each type",
    "poolbench_driver.suites.holmes.figures:_spearman": "phenomena",
    "poolbench_driver.suites.holmes.figures:_types": "phenomena",
    "poolbench_driver.suites.holmes.recordings:ScoreTable.weights": "phenomena",
    "poolbench_driver.suites.poolbench.audit:_baseline": "groups, the resamples of D1",
    "poolbench_driver.suites.poolbench.report.board:mean_cell": "concepts",
    "poolbench_driver.suites.poolbench.verification:_d1.counts": "groups, the resamples of D1",
    "poolbench_driver.suites.poolbench.verification:_passages": "groups, the folds of D1",
    "poolbench_driver.measures.prompting:paired_gain": "openings; halves of passages by their groups",
    "poolbench_driver.find.figures:Samples.of": "documents of benign texts, paradigms of pairs",
    "poolbench_extractor.recovered:_Recovery._loss_recovered": "pairs of stories",
    "poolbench_prober.contrast.figures:Figures._samples": "subjects",
    "poolbench_prober.contrast.figures:Figures._quotients": "subjects",
    "poolbench_prober.contrast.figures:Figures._of_halves.drawn": "subjects",
    "poolbench_prober.contrast.core:held_out_share": "pairs of stories",
    "poolbench_prober.d1.design:Design.build": "groups",
    "poolbench_prober.d1.design:_labelings": "matched pairs, as permuted_labels; the folds keep groups",
    "poolbench_prober.d1.design:_weights": "groups",
    "poolbench_prober.d1.linearity:_out_of_fold": "groups",
    "poolbench_prober.d1.nested:_train": "groups",
    "poolbench_prober.d1.reading:RowReader._fit": "groups",
    "poolbench_prober.sparse:_Split.resamples": "groups",
    "poolbench_prober.sparse:_folds": "groups",
    "poolbench_prober.probing.codes:ClassSender.choose": "groups of the set",
    "poolbench_prober.probing.compression:send": "groups of the set",
    "poolbench_prober.probing.compression:dealt_folds": "groups of the set",
    "poolbench_prober.probing.outcomes:Outcome.of": "groups of the set",
    "poolbench_prober.probing.core:task_measures": "groups of the set",
    "poolbench_prober.probing.targets:Targets.split": "groups of the set",
    "poolbench_prober.probing.value_code:ValueSender.__init__": "groups of the set",
    "poolbench_prober.valence.figures:resample_weights": "words, or groups of passages along a direction",
    "poolbench_scorer.gate:_degenerate_parts": "groups",
    "poolbench_scorer.training.examples:build_examples": "couples of a positive and a negative, true pairs first",
    "poolbench_scorer.training.examples:split_validation": "groups",
    "poolbench_scorer.training.fit:couple_batches": "couples",
    "poolbench_scorer.training.report:grouped_auroc": "groups",
}
#: What is drawn is a unit that nothing groups, or the group itself.
DRAWS_UNITS = {
    "poolbench.statistics.bootstrap:mean_interval": "concepts, each the mean over its cells",
    "poolbench.statistics.paired:_num_reached": "signs of concepts, each the mean over its cells",
    "poolbench_driver.statistics.ranks:mean_rank_intervals": "concepts, each the mean over models",
    "poolbench.statistics.bootstrap:bootstrap_counts": "the units that its caller names",
    "poolbench_driver.statistics.winning_rate:rank_resolution": "probing sets or concepts",
    "poolbench_driver.comparison.changes:_value_row": "concepts, each the mean over its cells",
    "poolbench_driver.comparison.changes:_rank_changes": "concepts",
    "poolbench_driver.console.board:tied_with_best": "concepts, or what else the suite averages over",
    "poolbench_driver.console.board:BoardSelection._weights": "concepts, or what else the suite averages over",
    "poolbench_driver.pages.boards.agreement:_agreement": "concepts",
    "poolbench_driver.suites.ce_bench.families:SaeEntrant.beats": "subjects",
    "poolbench_driver.suites.humanoid.cosines:Cosines.ways": "words",
    "poolbench_driver.suites.humanoid.rows:_shares": "words",
    "poolbench_driver.suites.humanoid.rows:_excess": "neutral fine-tunes",
    "poolbench_driver.suites.poolbench.d3:Shifts.__init__": "openings",
    "poolbench_driver.suites.poolbench.d2:opening_weights": "openings, within each half",
    "poolbench_driver.find.selection:select": "openings of the half that figures are read on",
    "poolbench_driver.find.baselines:steered_gain": "openings, as select",
    "poolbench_driver.sharing.rerun:drawn": "cells of a board",
    "poolbench_prober.probing.pilots:folds_of": "groups of instances, in samples and folds",
    "poolbench_prober.inputs.corpus:control_labels": "words of a control task",
}
#: Single rows are drawn, and why that parts nothing that matters.
DRAWS_ROWS = {
    "poolbench.directions.constructions:random_pairs": "C4 without true pairs: nothing is tested on them",
    "poolbench.pooling.extended:random_half": "tokens of one passage",
    "poolbench_driver.models.training:_batches": "the order of an epoch of training; nothing is split",
    "poolbench_driver.find.necessity:halves_step.build": "openings of a class; nothing is split",
    "poolbench_driver.find.judge:Judge.measures": "the order of texts to rate; nothing is split",
    "poolbench_extractor.trained:_order": "the order of pairs in training; nothing is split",
    "poolbench_prober.d1.published:published_cell": "protocol published: as the reference resamples",
    "poolbench_prober.d1.published:stratified_folds": "protocol published: the reference's ungrouped folds",
    "poolbench_prober.probing.pilots:_with_label_noise": "wrong labels of train and dev; splits are of groups",
    "poolbench_prober.probing.targets:control_values": "control labels have no meaning, and splits are of groups",
    "poolbench_prober.probing.training:_first_weights": "first weights of a probe",
    "poolbench_prober.probing.training:_pass": "order of an epoch, and dropout; splits are of groups",
    "poolbench_scorer.training.examples:couple_passages": "unpaired passages of train; true pairs come first",
}
#: Texts, vectors or pauses are made at random, and no data are divided.
MAKES = {
    "poolbench_corpora.planted.build:lm_documents", "poolbench_corpora.planted.grammar:",
    "poolbench_corpora.planted.grammar:Writer.deal", "poolbench_corpora.planted.build:_compose",
    "poolbench_corpora.planted.build:_plain_row", "poolbench_corpora.planted.build:write_document",
    "poolbench_corpora.planted.build:write_members", "poolbench_corpora.planted.signals:_some",
    "poolbench_corpora.probing.readers.grammar:read_grammar",
    "poolbench_corpora.stories.catalog:planted_stories",
    "poolbench_driver.cluster.services:PatientTransport.handle_request",
    "poolbench_corpora.probing.word_order:moved_span", "poolbench_corpora.places.passages:_loud",
    "poolbench_corpora.places.passages:_one_of", "poolbench_corpora.places.passages:_one_twin",
    "poolbench_corpora.places.passages:_drawn", "poolbench_corpora.places.passages:_xor",
    "poolbench_corpora.places.passages:redrawn", "poolbench_corpora.places.passages:write",
    "poolbench_corpora.places.words:vector_of",
    "poolbench_driver.measures.response:with_direction_spread",
    "poolbench_extractor.features:random_twin", "poolbench_extractor.models.changes:shuffled",
    "poolbench_prober.probing.pilots:_with_noise", "poolbench_prober.solver.kernel:RitzBasis.leading",
    "poolbench_scorer.gate:cut_passages",
    "poolbench_scorer.classifiers.windows:loop_words", "poolbench_scorer.classifiers.windows:shuffle_words",
    "poolbench_scorer.classifiers.windows:training_windows", "poolbench_steerer.engine.selftest:_vectors",
}  # fmt: skip


def draws() -> set[str]:
    """The module and function of every call that draws."""
    return {
        f"{'.'.join(path.relative_to(REPOSITORY / source).with_suffix('').parts)}:{place}"
        for source in SOURCES
        for path in tracked(f"{source}/*.py")
        for place in _places(ast.parse(path.read_text("utf-8")), "")
    }


def _places(node: ast.AST, place: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if isinstance(child, ast.Call) and _is_draw(child.func):
            yield place
        yield from _places(child, f"{place}.{child.name}".lstrip(".") if is_scope else place)  # type: ignore[attr-defined]


def _is_draw(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        return called.attr in METHODS | FUNCTIONS and ast.unparse(called.value) != "self"
    return isinstance(called, ast.Name) and called.id in FUNCTIONS


def test_every_draw_is_listed_once_with_the_groups_that_it_keeps() -> None:
    lists = (set(KEEPS_GROUPS), set(DRAWS_UNITS), set(DRAWS_ROWS), MAKES)
    listed = set.union(*lists)
    assert sum(map(len, lists)) == len(listed)
    found = draws()
    assert found - listed == set(), "a draw that is not listed: say what it keeps whole"
    assert listed - found == set(), "listed, and no longer in the code"


Grouped = Callable[[np.ndarray, np.ndarray], np.ndarray]
DIVISIONS: dict[str, Grouped] = {
    "folds": lambda groups, codes: grouped_folds(groups, codes, 5, 0),
    "splits": lambda groups, codes: drawn_splits(groups, 0),
    "inner folds": lambda groups, codes: np.asarray(dealt_folds(codes, groups, 0)),
    "resamples": lambda groups, codes: group_weights(groups, 20, 0).T,
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_what_divides_groups_keeps_them_whole(name: str) -> None:
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat(np.arange(40), rng.integers(1, 6, 40)))
    divided = DIVISIONS[name](groups, rng.integers(0, 2, len(groups)))
    assert len(np.unique(divided, axis=0)) > 1
    for group in range(40):
        assert len(np.unique(divided[groups == group], axis=0)) == 1


@pytest.mark.parametrize(("concept", "seed"), [("contrast", 0), ("imdb_sentiment", 3)])
def test_d1_of_a_surface_feature_is_the_figure_of_the_audit(concept: str, seed: int) -> None:
    passages = build_planted(concept, seed=0, num_train=160, num_test=0, num_scorer=0)
    found = audit(CONCEPTS.get(concept), passages, seed=seed, num_bootstrap=100)
    train = Passages.from_table(passages.filter(pc.equal(passages["split"], "train")))
    params = ProbeParams(seed=seed, num_bootstrap=100, num_permutations=1, sensitivity_c=())
    design = Design.build(train, None, params)
    np.testing.assert_array_equal(found.training.folds, design.folds)
    np.testing.assert_array_equal(found.training.groups, train.groups)
    for figure in found.figures:
        if figure.name in TEXT_FEATURES:
            vectors = PooledVectors.from_matrix(TEXT_FEATURES[figure.name](train.texts))
            (d1,) = [m for m in probe_cell(design, vectors, None, params).measures if m.metric == "d1.auroc"]
            assert figure.auroc == pytest.approx(d1.value, abs=1e-3)
            assert figure.interval == pytest.approx((d1.ci_low, d1.ci_high), abs=3e-3)
