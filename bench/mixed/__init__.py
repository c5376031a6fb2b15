"""The parts of the benchmark of requests beside a bulk run."""
