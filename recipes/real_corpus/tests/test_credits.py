"""Credits and licences of documents, from files as the archives have them."""

from pathlib import Path

import pytest
from recipes.passages.documents import SOURCES, Document
from recipes.real_corpus.credits import attribution, is_free
from recipes.real_corpus.rules import rules

pytestmark = pytest.mark.lane(name="recipes")

NOTICE = (
    "PLoS Biology. 2003; 1(2): e52.\nPubMed ID: 14624252\n\nAnna Kim\nWendy J French\n\nCopyright: 2003 Kim et al.\n"
)
PEP = "PEP: 1\n\nCopyright\n=========\n\nThis document is placed in the public\ndomain or under the CC0-1.0 licence.\n"


@pytest.fixture
def archives(tmp_path: Path) -> str:
    files = {"craft_articles/14624252.copyright": NOTICE, "peps/pep-0001.rst": PEP, "peps/pep-0002.rst": "PEP: 2\n"}
    for name, text in files.items():
        path = tmp_path / "passages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def document(doc_id: str) -> Document:
    source = doc_id.partition("/")[0]
    return Document(doc_id, source, SOURCES[source].licence, "a domain", "A text.")


@pytest.mark.parametrize(
    ("doc_id", "credit"),
    [
        ("craft_articles/14624252", "Anna Kim et al., PLoS Biology. 2003; 1(2): e52, PubMed 14624252"),
        ("novels/hardy/tess", "Hardy, Tess"),
        ("dc_code/16-831/16-831.02", "Code of the District of Columbia, section 16-831.02"),
        ("peps/pep-0001", "Python Enhancement Proposals, pep-0001"),
        ("inaugural/washington/1789-Washington", "Inaugural address, 1789-Washington"),
    ],
)
def test_a_document_is_credited_to_author_and_work(archives: str, doc_id: str, credit: str) -> None:
    assert attribution(document(doc_id), archives) == credit


def test_documents_without_a_stated_licence_are_not_free(archives: str) -> None:
    free = {doc_id: is_free(document(doc_id), archives) for doc_id in ("peps/pep-0001", "peps/pep-0002")}
    assert free == {"peps/pep-0001": True, "peps/pep-0002": False}
    assert is_free(document("craft_articles/14624252"), archives)
    assert not is_free(document("craft_articles/LICENSE"), archives)
    assert is_free(document("novels/hardy/tess"), archives)


def test_share_alike_texts_are_in_concepts_of_their_own_and_none_is_left_unlicensed() -> None:
    for rule in rules().values():
        pools = [rule.labels.positives, *([rule.labels.negatives] if rule.labels.negatives else [])]
        sources = {source for pool in pools for source in pool.sources}
        assert sources.isdisjoint({"movie_reviews", "goemotions", "masc"})
        assert any("SA" in SOURCES[source].licence for source in sources) is rule.share_alike
