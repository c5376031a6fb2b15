"""The OpenAI API of a replica: vLLM's server on its engine, within bounds, with steering, probes and receipts."""
