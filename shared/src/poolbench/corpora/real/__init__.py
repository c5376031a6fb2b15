"""Real text: readers of the openly licensed archives."""

from poolbench.corpora.real import sources as _sources  # noqa: F401  (registers the sources)
from poolbench.corpora.real.archives import ARCHIVES_VARIABLE, archives_folder
from poolbench.corpora.real.documents import SOURCES, Document, Source, get_source, read_documents

__all__ = ["ARCHIVES_VARIABLE", "SOURCES", "Document", "Source", "archives_folder", "get_source", "read_documents"]
