"""Corpus files and their rules: what is written is read back, and each defect is named by file and line."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poolbench.concepts import CONCEPTS
from poolbench.contracts import Row
from poolbench.contracts.tables import PASSAGES
from poolbench.errors import CorpusError, RestrictedError, UnknownConceptError
from poolbench.texts import count_words
from poolbench_corpora.checks import CHECKS, seed_pattern, validate_corpus
from poolbench_corpora.io import CorpusManifest, read_concept, read_manifest, write_corpus
from poolbench_corpora.near import has_inferred_documents, infer_documents, shingles, token_difference
from poolbench_corpora.partition import PARTITION_VERSION
from poolbench_corpora.planted import PLANTED_REVISION, build_planted

MANIFEST = CorpusManifest(revision=PLANTED_REVISION, tokenizer="words", window=(90, 140), recipe="a test")


def planted(concept: str = "causation") -> pa.Table:
    return build_planted(concept, seed=0, num_train=8, num_test=4, num_scorer=4)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    write_corpus(planted(), tmp_path, MANIFEST)
    return tmp_path


def by_id(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: row["passage_id"])


def test_a_corpus_survives_writing_and_reading(corpus: Path) -> None:
    read = read_concept(corpus, "causation")
    assert read.schema == PASSAGES
    assert by_id(read) == by_id(planted())


def test_the_layout_is_the_published_one(corpus: Path) -> None:
    files = {path.name for path in (corpus / "causation").iterdir()}
    names = ("train_pos", "train_neg", "test_pos", "test_neg", "scorer_pos", "scorer_neg")
    assert files == {f"{name}.jsonl" for name in names}
    record = json.loads((corpus / "causation/train_pos.jsonl").read_text().splitlines()[0])
    published = {"id", "text", "label", "domain", "token_count", "matched_pair_id", "split"}
    assert published | {"doc_id", "source", "licence", "revision", "signal"} == set(record)


def test_the_manifest_names_tokenizer_revision_and_partition(corpus: Path) -> None:
    manifest = read_manifest(corpus)
    assert manifest == MANIFEST
    assert manifest.partition_version == PARTITION_VERSION


def test_rewriting_a_corpus_removes_files_that_it_no_longer_has(corpus: Path) -> None:
    table = build_planted("causation", seed=0, num_train=8, num_test=4, num_scorer=0)
    write_corpus(table, corpus, MANIFEST)
    assert not (corpus / "causation/scorer_pos.jsonl").exists()
    assert by_id(read_concept(corpus, "causation")) == by_id(table)


def test_sensitive_passages_are_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RestrictedError, match="toxicity"):
        write_corpus(planted("toxicity"), tmp_path, MANIFEST)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("POOLBENCH_SENSITIVE", "true")
    write_corpus(planted("toxicity"), tmp_path, MANIFEST)
    assert read_concept(tmp_path, "toxicity").num_rows == 16


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", "not JSON"),
        ("[]", "a list; expected an object"),
        ("{}", "id: Field required; text: Field required; label: Field required"),
        ('{"id": "a", "text": "b", "label": "1"}', "label: Input should be a valid integer"),
        ('{"id": "a", "text": "b", "label": 0}', "label is 0, this file holds 1"),
        ('{"id": "a", "text": " ", "label": 1}', "text is empty"),
        ('{"id": "a", "text": "b", "label": 1, "split": "test"}', "split is 'test'; this file holds 'train'"),
    ],
)
def test_a_wrong_line_is_named_with_file_and_number(corpus: Path, line: str, message: str) -> None:
    path = corpus / "causation/train_pos.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], line, *lines[1:]]) + "\n")
    with pytest.raises(CorpusError) as error:
        read_concept(corpus, "causation")
    assert f"{path}, line 2" in str(error.value)
    assert message in str(error.value)


def test_empty_missing_and_binary_files_are_named(corpus: Path) -> None:
    path = corpus / "causation/test_neg.jsonl"
    path.write_text("")
    with pytest.raises(CorpusError, match=r"test_neg\.jsonl is empty"):
        read_concept(corpus, "causation")
    path.write_bytes(b"\xfe")
    with pytest.raises(CorpusError, match=r"test_neg\.jsonl is not UTF-8 in line 1, byte 1"):
        read_concept(corpus, "causation")
    path.unlink()
    with pytest.raises(CorpusError, match=r"test_neg\.jsonl is missing"):
        read_concept(corpus, "causation")


def test_missing_folders_are_named(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="has no corpus of 'hedging'; it has: causation"):
        read_concept(corpus, "hedging")
    assert read_manifest(tmp_path / "nowhere") is None


def test_a_repeated_id_is_refused(corpus: Path) -> None:
    path = corpus / "causation/train_pos.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(CorpusError, match="occurs twice"):
        read_concept(corpus, "causation")


def bare(texts: list[str], pairs: list[str | None] | None = None) -> pa.Table:
    """Passages without documents, as the published corpus has them."""
    rows = [
        {"passage_id": str(index), "concept": "causation", "text": text, "pair_id": pair}
        for index, (text, pair) in enumerate(zip(texts, pairs or [None] * len(texts), strict=True))
    ]
    return pa.Table.from_pylist(rows, schema=PASSAGES)


def test_documents_are_inferred_from_shared_8_grams_and_pairs() -> None:
    one, two = "a b c d e f g h", "i j k l m n o p"
    texts = [f"{one} x", f"y {one} {two}", f"z {two}", "q r s t u v w x", "another text of this pair"]
    documents = infer_documents(bare(texts, [None, None, None, "p", "p"]))["doc_id"].to_pylist()
    assert documents == ["inferred/causation-0"] * 3 + ["inferred/causation-3"] * 2


def templated(num: int, seed: int = 0) -> list[str]:
    """Passages of one template: 24 fixed words around three chosen ones, and a sentence of their own."""
    rng = random.Random(seed)
    words = [f"word{number}" for number in range(4000)]
    opening = "this is the report of the office for the week in which the following was seen and written down"
    return [f"{opening} {' '.join(rng.sample(words, 30))} end of the report signed" for _ in range(num)]


def test_a_template_does_not_make_one_document_of_a_corpus() -> None:
    documents = infer_documents(bare(templated(200)))["doc_id"].to_pylist()
    assert len(set(documents)) == 200


def test_copies_are_one_document_even_among_passages_of_a_template() -> None:
    """Sixty passages are copies of one, but for one word; they share a template with 140 others."""
    copies = [templated(1, seed=9)[0].replace("end", f"end{number}") for number in range(60)]
    documents = infer_documents(bare([*templated(140), *copies]))["doc_id"].to_pylist()
    assert len(set(documents[:140])) == 140
    assert len(set(documents[140:])) == 1
    assert not set(documents[:140]) & set(documents[140:])


def test_pairs_stay_together_at_every_threshold() -> None:
    texts = templated(120)
    pairs = [f"p{number % 60}" for number in range(120)]
    documents = infer_documents(bare(texts, pairs))["doc_id"].to_pylist()
    assert documents[:60] == documents[60:]
    assert len(set(documents)) == 60


def test_named_documents_stay() -> None:
    table = planted()
    assert infer_documents(table) is table
    assert not has_inferred_documents(table)
    assert has_inferred_documents(infer_documents(bare(["a"])))


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12))
def test_inferred_groups_do_not_depend_on_order(letters: list[str]) -> None:
    """Texts of one letter repeated share 8-grams, texts of two letters do not: groups are the letters."""
    table = infer_documents(bare([" ".join(letter * 9) for letter in letters]))
    groups: dict[str, set[str]] = {}
    for letter, document in zip(letters, table["doc_id"].to_pylist(), strict=True):
        groups.setdefault(letter, set()).add(document)
    assert all(len(documents) == 1 for documents in groups.values())
    assert len(set().union(*groups.values())) == len(groups)


WINDOW = (90, 140)


def planted_corpus(concept: str) -> list[Row]:
    return build_planted(concept, seed=0, num_train=16, num_test=16, num_scorer=4).to_pylist()


def broken_rules(rows: list[Row]) -> set[str]:
    return {finding.rule for finding in validate_corpus(pa.Table.from_pylist(rows, PASSAGES), window=WINDOW)}


def first(rows: list[Row], **values: Any) -> Row:
    return next(row for row in rows if all(row[name] == value for name, value in values.items()))


def drop_a_negative(rows: list[Row]) -> None:
    rows.remove(first(rows, label=0, split="train"))


def drop_the_test_split(rows: list[Row]) -> None:
    rows[:] = [row for row in rows if row["split"] != "test"]


def miscount(rows: list[Row]) -> None:
    rows[0]["token_count"] = 141


def forget_the_count(rows: list[Row]) -> None:
    rows[0]["token_count"] = None


def merge_domains(rows: list[Row]) -> None:
    for row in rows:
        row["domain"] = "one"


def pair_an_independent_passage(rows: list[Row]) -> None:
    rows[0]["pair_id"] = "p"


def repeat_a_text(rows: list[Row]) -> None:
    first(rows, label=0, split="test")["text"] = first(rows, label=1, split="train")["text"].upper()


def nearly_repeat_a_text(rows: list[Row]) -> None:
    first(rows, label=1, split="test")["text"] = "Then " + first(rows, label=1, split="train")["text"]


def move_a_document(rows: list[Row]) -> None:
    first(rows, split="train")["doc_id"] = first(rows, split="test")["doc_id"]


def hide_the_licence(rows: list[Row]) -> None:
    rows[0]["licence"] = ""


INDEPENDENT: list[tuple[Callable[[list[Row]], None], set[str]]] = [
    (drop_a_negative, {"balance"}),
    (drop_the_test_split, {"balance", "source_domains"}),
    (miscount, {"token_window"}),
    (forget_the_count, {"token_window"}),
    (merge_domains, {"source_domains"}),
    (pair_an_independent_passage, {"pair_members"}),
    (repeat_a_text, {"duplicates", "near_duplicates"}),
    (nearly_repeat_a_text, {"near_duplicates"}),
    (move_a_document, {"one_split_per_document", "partition"}),
    (hide_the_licence, {"licences"}),
]


@pytest.mark.parametrize(("spoil", "expected"), INDEPENDENT, ids=lambda value: getattr(value, "__name__", ""))
def test_a_defect_breaks_its_rules(spoil: Callable[[list[Row]], None], expected: set[str]) -> None:
    rows = planted_corpus("narrative")
    assert broken_rules(rows) == set()
    spoil(rows)
    found = broken_rules(rows)
    assert expected <= found
    assert found <= expected | {"pair_members", "balance"}


def test_a_pair_split_in_two_is_found() -> None:
    rows = planted_corpus("causation")
    train, test = first(rows, split="train", label=1), first(rows, split="test", label=1)
    train["pair_id"], test["pair_id"] = test["pair_id"], train["pair_id"]
    assert broken_rules(rows) == {"pair_members", "pair_difference", "near_duplicates"}


def test_a_seed_word_in_a_negative_is_found_at_word_boundaries_only() -> None:
    rows = planted_corpus("planning")
    negative = first(rows, label=0)
    negative["text"] += " Planters met."
    assert broken_rules(rows) == set()
    negative["text"] += " Their Plan held."
    assert broken_rules(rows) == {"seed_words"}


def test_negators_and_numbers_are_counted() -> None:
    rows = planted_corpus("negation_density")
    first(rows, label=0)["text"] += " It isn't."
    marked = next(row for row in rows if row["signal"])
    marked["text"] = first(rows, label=0, split="train")["text"] + " Never."
    assert "negators" in broken_rules(rows)
    findings = validate_corpus(pa.Table.from_pylist(rows, PASSAGES), window=WINDOW)
    assert sorted(finding.message for finding in findings if finding.rule == "negators") == [
        "1 negatives contain negators",
        "1 positives have fewer than 3 negators",
    ]
    rows = planted_corpus("numerical_precision")
    first(rows, label=0)["text"] += " It had 4."
    assert broken_rules(rows) == {"numbers"}


def test_findings_name_passages_and_never_quote_them() -> None:
    rows = planted_corpus("toxicity")
    rows[0]["token_count"] = 0
    (finding,) = validate_corpus(pa.Table.from_pylist(rows, PASSAGES), window=WINDOW)
    assert finding.passages == (rows[0]["passage_id"],)
    assert rows[0]["text"][:20] not in finding.message


def test_each_concept_has_its_own_window_and_must_be_registered() -> None:
    rows = planted_corpus("narrative")
    table = pa.Table.from_pylist(rows, PASSAGES)
    assert {finding.rule for finding in validate_corpus(table)} == {"token_window"}
    rows[0]["concept"] = "irony"
    with pytest.raises(UnknownConceptError):
        broken_rules(rows)


def test_every_rule_has_a_description() -> None:
    assert len(CHECKS) == 13
    assert all(check.__doc__ for check in CHECKS.values())


def test_text_measures() -> None:
    assert count_words("It isn't so: 3 o'clock.") == 7
    assert token_difference("The pump failed because it froze.", "The pump failed. It froze.") == 1
    assert token_difference("a b", "c d e") == 3
    assert len(shingles("one two three four five six seven eight nine")) == 2
    assert shingles("too short") == frozenset()


def test_seed_words_match_either_apostrophe_and_any_space() -> None:
    pattern = seed_pattern(CONCEPTS.get("frustration"))
    assert pattern.search("Why won’t it")
    assert pattern.search("Come\non!")
    assert not pattern.search("welcome onward")
