"""L2-regularised linear probes: one interface, many probes on one matrix at once."""
