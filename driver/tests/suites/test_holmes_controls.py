"""Controls of the suite holmes: shuffled words and random weights stand beside what they control."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from driver.tests.suites.test_holmes import planned

from poolbench.errors import ConfigError
from poolbench.steps.extractor import EXTRACT, RandomWeights
from poolbench_corpora.probing import PROBING_INSTANCES, PROBING_PASSAGES, ProbingData, Span, passage_id
from poolbench_driver.contract.load import load_run_config
from poolbench_driver.records import run_id
from poolbench_driver.suites.holmes.rows import entrant_of
from poolbench_driver.suites.holmes.thinning import moved_span, without_order

TEXT = "The old ferry didn't wait, and  the pier was empty."


def test_shuffled_texts_keep_their_words_and_spans_follow_them() -> None:
    (whole,) = moved_span(Span(TEXT, 0, len(TEXT)), 0)
    assert whole.text != TEXT and Counter(whole.text.split()) == Counter(TEXT.split())
    assert (whole.start, whole.end) == (0, len(whole.text))
    for words in ("ferry", "old ferry", "n't", "dn't wait", "wait", "wait, and  the"):
        start = TEXT.index(words)
        pieces = moved_span(Span(TEXT, start, start + len(words)), 0)
        assert {piece.text for piece in pieces} == {whole.text}
        assert Counter(word for piece in pieces for word in piece.words.split()) == Counter(words.split())


def test_words_that_stand_together_again_are_one_piece() -> None:
    """Of two words, half of the seeds keep the order: then the span is whole."""
    numbers = Counter(len(moved_span(Span("a b c", 0, 3), seed)) for seed in range(200))
    assert set(numbers) == {1, 2} and numbers[1] > 60 and numbers[2] > 60
    found = {moved_span(Span("a b c", 0, 3), seed)[0].text for seed in range(200)}
    assert len(found) == 6


def test_instances_name_the_pieces_and_keep_the_rest() -> None:
    spans = {"ferry": Span(TEXT, 8, 13), "both": Span(TEXT, 4, 13)}
    passages = [
        {"passage_id": passage_id(each), "text": TEXT, "span": {"start": each.start, "end": each.end}}
        for each in spans.values()
    ]
    row = {"first": [passage_id(spans["ferry"]), passage_id(spans["both"])], "second": [passage_id(spans["ferry"])]}
    row |= {"instance_id": "s/1", "label": "x", "value": None, "split": "train", "group": "s/g", "word": "ferry"}
    data = ProbingData(pa.Table.from_pylist(passages, PROBING_PASSAGES), pa.Table.from_pylist([row], PROBING_INSTANCES))
    found = without_order(data, 0)
    (moved,) = found.instances.to_pylist()
    assert {name: moved[name] for name in row if name not in ("first", "second")} == {
        name: row[name] for name in row if name not in ("first", "second")
    }
    assert len(set(moved["first"])) == len(moved["first"])  # the prober refuses a passage that is named twice
    assert {*moved["first"], *moved["second"]} == set(found.passages["passage_id"].to_pylist())


def test_controlled_entrants_stand_beside_the_others_whose_keys_stay() -> None:
    plain, made = planned(), planned(control=("word_order", "random_weights"))
    assert all(made.probes[at] == keys for at, keys in plain.probes.items())
    assert len(made.probes) == 3 * len(plain.probes)
    assert len({key for own in made.probes.values() for key in own.values()}) == 2 * len(made.probes)
    names = {entrant_of(made.scope, at) for at in made.probes}
    assert names == {f"demo{control} A1_mean final" for control in ("", "/word_order", "/random_weights")}
    changes = [EXTRACT.params_of(task).change for task in made.tasks.values() if task.kind == EXTRACT.kind]
    assert Counter(map(str, changes)) == {"None": 2, str(RandomWeights(seed=0)): 1}


def test_the_words_of_a_text_are_shuffled_alike_in_all_sets() -> None:
    """A text stays one text, so that it is read once."""
    made = planned(sets=("planted-pos", "planted-role"), control=("word_order",))
    before, after = ({row["text"] for each in made.scope.data_of(name).values() for row in each.passages.to_pylist()}
                     for name in ("", "word_order"))  # fmt: skip
    assert len(after) <= len(before) and after != before


@pytest.mark.parametrize("later", [{"control": []}, {"recipe": "released"}])
def test_later_settings_leave_the_names_of_runs(later: dict[str, Any]) -> None:
    config = {"suite": "holmes", "preset": "demo"}
    assert run_id(load_run_config(None, config)) == run_id(load_run_config(None, config | later))
    other = load_run_config(None, config | {"control": ["word_order"]})
    assert run_id(other) != run_id(load_run_config(None, config))


def test_an_unknown_control_is_refused() -> None:
    with pytest.raises(ConfigError, match="control"):
        load_run_config(None, {"suite": "holmes", "control": ["word-order"]})
