"""Parts of the probe benchmarks: vectors, scikit-learn, and memory."""
