"""Parts of the extraction benchmarks: inputs, the compared methods, and how they are measured."""
