"""Parts of the extraction benchmarks: inputs, the ways that are compared, and how they are measured."""
