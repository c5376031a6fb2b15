"""Real text: readers of the openly licensed archives, and corpora with weak labels made from them."""

from poolbench_corpora.real import sources as _sources
from poolbench_corpora.real.archives import ARCHIVES_VARIABLE, archives_folder
from poolbench_corpora.real.build import REAL_REVISION, build_real, real_concepts, real_revision
from poolbench_corpora.real.documents import SOURCES, Document, Source, get_source, read_documents

__all__ = [
    "ARCHIVES_VARIABLE",
    "REAL_REVISION",
    "SOURCES",
    "Document",
    "Source",
    "archives_folder",
    "build_real",
    "get_source",
    "read_documents",
    "real_concepts",
    "real_revision",
]
