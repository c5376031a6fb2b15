"""Parts of the steering benchmarks: batches, their comparison, the reference code, and a whole concept."""
