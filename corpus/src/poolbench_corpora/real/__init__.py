"""Real text: readers of the openly licensed archives, and corpora with weak labels made from them."""

from poolbench_corpora.real import sources as _sources
from poolbench_corpora.real.build import build_real, real_concepts, real_revision
from poolbench_corpora.real.documents import (
    ARCHIVES_VARIABLE,
    SOURCES,
    Document,
    archives_folder,
    get_source,
    read_documents,
)
