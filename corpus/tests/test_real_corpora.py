"""Windows, rewrites and weak labels; whole corpora where the archives are at hand."""

import os
from pathlib import Path
from random import Random

import pytest

from poolbench.errors import CorpusError
from poolbench.texts import count_words
from poolbench_corpora.checks import validate_corpus
from poolbench_corpora.real import build_real, real_concepts
from poolbench_corpora.real.documents import SOURCES
from poolbench_corpora.real.weak_labels import weak_labels
from poolbench_corpora.real.windows import ChosenPassages, sentences, windows

SMALL = {"num_train": 12, "num_test": 6, "num_scorer": 6, "window": (60, 160), "seed": 3}


def test_sentences_cover_the_text_in_order() -> None:
    text = 'Mr. A. Smith came. "Why?" he asked. It cost 3.5 pounds.\n\nNew paragraph'
    found = [text[start:end] for start, end in sentences(text)]
    assert found == ["Mr. A. Smith came.", '"Why?" he asked.', "It cost 3.5 pounds.", "New paragraph"]


def test_windows_are_whole_disjoint_sentences_within_bounds() -> None:
    text = " ".join(f"Sentence number {number} says something new." for number in range(200))
    found = list(windows(text, (30, 50), count_words, Random(1)))
    assert len(found) > 20
    assert all(30 <= count_words(passage) <= 50 and passage in text for passage in found)
    assert len({word for passage in found for word in passage.split() if word.isdigit()}) == sum(
        passage.count("Sentence") for passage in found
    )


def test_a_text_that_fits_is_one_passage() -> None:
    assert list(windows("One. Two. Three.", (2, 10), count_words, Random(0))) == ["One. Two. Three."]


def test_unknown_concept_and_odd_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="depression"):
        build_real("depression", archives=tmp_path, num_train=2, num_test=2, num_scorer=0)
    with pytest.raises(CorpusError, match="even number"):
        build_real("hedging", archives=tmp_path, num_train=3, num_test=2, num_scorer=0)


def test_every_rule_reads_registered_sources() -> None:
    for labels in weak_labels().values():
        pools = [labels.positives, *([labels.negatives] if labels.negatives else [])]
        assert all(set(pool.sources) <= SOURCES.keys() for pool in pools)
        assert (labels.rewrite is None) == (labels.negatives is not None)


def test_too_few_passages_are_counted_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "passages" / "novels").mkdir(parents=True)
    (tmp_path / "passages" / "novels" / "Hardy_Tess_1891.txt").write_text("It was perhaps so. " * 3)
    monkeypatch.setattr("poolbench_corpora.real.build.read_documents", lambda name, _: ())
    with pytest.raises(CorpusError, match=r"hold 0 pairs for train, 6 are asked for"):
        build_real("hedging", archives=tmp_path, **SMALL)


def archives() -> Path:
    """The folder of archives, or a skip that says where it was looked for."""
    folder = Path(os.environ.get("POOLBENCH_REAL_TEXT", "../shared/data"))
    if not (folder / "passages.tar.xz").exists() and not (folder / "passages").is_dir():
        pytest.skip(f"no real-text archives at {folder}; set POOLBENCH_REAL_TEXT")
    return folder


@pytest.mark.parametrize("concept", [name for name in real_concepts() if name not in ("toxicity", "deference")])
def test_real_corpora_obey_the_construction_rules(concept: str) -> None:
    table = build_real(concept, archives=archives(), **SMALL)
    assert table.num_rows == 24
    limits = weak_labels()[concept].limits
    findings = [finding for finding in validate_corpus(table, window=(60, 160)) if finding.rule not in limits]
    assert findings == []


def test_real_corpora_are_reproducible_and_depend_on_the_seed() -> None:
    first = build_real("contrast", archives=archives(), **SMALL)
    assert first.equals(build_real("contrast", archives=archives(), **SMALL))
    assert not first.equals(build_real("contrast", archives=archives(), **{**SMALL, "seed": 4}))


def test_near_duplicates_are_refused() -> None:
    shelf = ChosenPassages()
    words = [f"word{number}" for number in range(100)]
    assert shelf.accepts(" ".join(words))
    assert not shelf.accepts(" ".join(words[:70] + ["other"] * 30))
    assert shelf.accepts(" ".join(words[:10] + [f"new{number}" for number in range(90)]))
    assert shelf.accepts("Too short to share anything.")
