"""Readers of the recipe on small hand-made texts, and the archive where it is at hand."""

import pytest
from recipes.annotator import archive, docs, entities, sources
from recipes.annotator.conllu import Sentence, Word, read_conllu
from recipes.passages.documents import has_archive
from spacy.vocab import Vocab

CONLLU = """# newdoc id = d1
# meta::summary1 = a summary beside it
# text = I don't  know.
1\tI\tI\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
4\tknow\tknow\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No
4.1\tknow\tknow\tVERB\t_\t_\t_\t_\t_\t_
5\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_

# text = Go
1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_
"""


def test_conllu_words_and_spaces() -> None:
    first, second = read_conllu(CONLLU, source="gum")
    assert first.doc_id == second.doc_id == "gum/d1"
    assert [word.form for word in first.words] == ["I", "do", "n't", "know", "."]
    assert [word.space_after for word in first.words] == [True, False, True, False, False]
    assert [word.head for word in first.words] == [3, 3, 3, 3, 3]


def test_documents_carry_trees() -> None:
    doc = docs.tree_docs(read_conllu(CONLLU, source="gum"), Vocab())[0]
    assert doc.text == "I don't know. Go"
    assert [token.dep_ for token in doc][3:] == ["ROOT", "punct", "ROOT"]
    assert [token.is_sent_start for token in doc] == [True, False, False, False, False, True]
    assert doc[2].lemma_ == "not" and doc[0].pos_ == "PRON"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["I-PER", "I-PER", "O", "I-ORG"], [(0, 2, "PER"), (3, 4, "ORG")]),  # IOB1
        (["B-LOC", "B-LOC", "I-LOC"], [(0, 1, "LOC"), (1, 3, "LOC")]),
        (["I-ORG", "I-LOC"], [(0, 1, "ORG"), (1, 2, "LOC")]),
        (["B-creative-work", "I-creative-work"], [(0, 2, entities.UNKNOWN)]),
        ([], []),
    ],
)
def test_iob_spans(labels: list[str], expected: list[tuple[int, int, str]]) -> None:
    assert list(entities.spans(labels)) == expected


def test_spaces_are_put_back() -> None:
    forms = ["He", "did", "n't", "pay", "(", "$", "5", ")", "."]
    text = "".join(f + " " * s for f, s in zip(forms, entities.spaces(forms), strict=True))
    assert text == "He didn't pay ($5)."


def test_unknown_entities_are_missing_values() -> None:
    sentence = next(entities.read_conll("Ann B-PER\nuses O\nUbuntu B-product\n", source="wnut17"))
    doc = docs.entity_docs([sentence], Vocab())[0]
    assert [token.ent_type_ for token in doc] == ["PER", "", ""]
    assert [token.ent_iob_ for token in doc] == ["B", "O", ""]


def test_user_names_and_roles_are_unknown() -> None:
    tweet = next(entities.read_conll("@ B-PER\nann B-PER\nin O\nRome B-LOC\n", source="broad_twitter/a"))
    assert entities.drop_user_names(tweet).entities == [(3, 4, "LOC"), (0, 1, "?"), (1, 2, "?")]
    filing = next(entities.read_conll("Lender I-PER\n, O\nJo I-PER\nLee I-PER\n", source="sec_filings"))
    assert entities.drop_roles(filing).entities == [(0, 1, "?"), (2, 4, "PER")]


def test_gum_names_from_mentions() -> None:
    rows = [
        ("The", "DET", "(1-organization-new"),
        ("University", "PROPN", ""),
        ("of", "ADP", ""),
        ("Oslo", "PROPN", "(2-place-new)1)"),
        ("saw", "VERB", ""),
        ("Dr.", "PROPN", "(3-person-new"),
        ("Lund", "PROPN", ""),
        ("himself", "PRON", "3)"),
        ("Monday", "PROPN", "(4-time-new)"),
    ]
    words = [Word(form, form, upos, i, "root", True, f"Entity={cell}") for i, (form, upos, cell) in enumerate(rows)]
    found = entities.gum_entities(Sentence("gum/x", words)).entities
    assert found == [(1, 4, "ORG"), (5, 7, "PER"), (8, 9, entities.UNKNOWN)]


@pytest.mark.lane(name="simulations")
def test_splits_do_not_overlap() -> None:
    if not has_archive(None, archive.ARCHIVE):
        pytest.skip("the real-text archives are not here; set POOLBENCH_REAL_TEXT")
    members = archive.read_members(None)
    for parts in (sources.treebanks(members), sources.entity_sets(members)):
        train = {sentence.doc_id for sentence in parts.train}
        for name, sentences in parts.test.items():
            assert sentences and not train & {sentence.doc_id for sentence in sentences}, name
        assert not train & {sentence.doc_id for sentence in parts.dev}
