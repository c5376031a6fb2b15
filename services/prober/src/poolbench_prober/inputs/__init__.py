"""Inputs of tasks: passages, vectors or kept states aligned with them, and the common component that S4 removes."""
