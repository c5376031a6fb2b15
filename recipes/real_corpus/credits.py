"""Who is to be credited for a document, and whether its licence is stated."""

import re
from functools import cache
from pathlib import Path

from recipes.passages.documents import Document, read_archive

_FREE = re.compile(r"public\s+domain|CC0", re.IGNORECASE)
_CREDITS = {
    "novels": "{0}, {1}",
    "craft_articles": "PubMed {0}",
    "dc_code": "Code of the District of Columbia, section {1}",
    "cfpb_regulations": "Consumer Financial Protection Bureau, 12 CFR, {0}",
    "cfpb_complaints": "Consumer Complaint Database of the CFPB, {0}",
    "factbook": "CIA World Factbook, {0}",
    "peps": "Python Enhancement Proposals, {0}",
    "keps": "The Kubernetes Authors, enhancement {0}",
    "python_docs": "Python Software Foundation, documentation of Python 3.11, {0}",
    "django_docs": "Django Software Foundation and contributors, documentation of Django 3.2, {0}",
    "inaugural": "Inaugural address, {1}",
    "state_union": "State of the Union address, {1}",
    "politeness": "Contributors of Stack Exchange and Wikipedia, request {0} of the Stanford Politeness Corpus",
}


def attribution(document: Document, archives: str | Path | None) -> str:
    """Return the credit of a document: author or publisher, and work."""
    _, first, *rest = document.doc_id.split("/")
    place = [first, *rest] if rest else [first, first]
    if document.source == "novels":
        place = [part.replace("-", " ").title() for part in place]
    credit = _CREDITS[document.source].format(*place)
    if document.source == "craft_articles":
        notice = _files(archives)[f"{document.doc_id}.copyright"].decode("utf-8")
        credit = f"{_authors(notice)}, {credit}"
    return credit


def _authors(notice: str) -> str:
    """Return first author and place of publication from the notice of an article: place, PubMed id, authors by line."""
    published, _, *authors = (line.strip() for line in notice.split("\n") if line.strip())
    return f"{authors[0]} et al., {published.rstrip('.')}"


def is_free(document: Document, archives: str | Path | None) -> bool:
    """Return whether the licence of a document is stated. Articles and PEPs state their own, and a few PEPs none."""
    if document.source == "craft_articles":
        return f"{document.doc_id}.copyright" in _files(archives)  # the licence of the annotations lies beside them
    return document.source != "peps" or document.doc_id in _free_peps(archives)


@cache
def _free_peps(archives: str | Path | None) -> frozenset[str]:
    peps = {name: text for name, text in _files(archives).items() if name.startswith("peps/") and name.endswith(".rst")}
    return frozenset(name.removesuffix(".rst") for name, text in peps.items() if _FREE.search(text.decode("utf-8")))


def _files(archives: str | Path | None) -> dict[str, bytes]:
    return read_archive(archives or "", "passages")
