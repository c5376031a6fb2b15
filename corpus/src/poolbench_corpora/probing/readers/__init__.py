"""Readers of probing sets: each yields the samples of one kind of source."""

from collections.abc import Callable, Iterator, Mapping
from inspect import signature

from poolbench.errors import ConfigError, UnknownNameError
from poolbench_corpora.probing.readers import grammar, tables
from poolbench_corpora.probing.samples import Note, ProbingSet, Sample

Read = Callable[..., Iterator[Sample | Note]]
"""Yields samples, from a definition and its parameters."""
READERS: Mapping[str, Read] = {
    "grammar": grammar.read_grammar,
    "table": tables.read_table,
    "senteval": tables.read_senteval,
}


def samples_of(definition: ProbingSet, readers: Mapping[str, Read] = READERS) -> Iterator[Sample | Note]:
    """Return the samples of a set, and notes on what its reader leaves out.

    Raises:
        UnknownNameError: There is no such reader.
        ConfigError: The definition has other parameters than its reader.
        CorpusError: Then or later: the source cannot be read.
    """
    if definition.reader not in readers:
        raise UnknownNameError("reader of probing sets", definition.reader, readers)
    read = readers[definition.reader]
    try:
        signature(read).bind(definition, **definition.parameters)
    except TypeError as error:
        raise ConfigError(f"probing set {definition.id!r}, reader {definition.reader!r}: {error}") from None
    return read(definition, **definition.parameters)
