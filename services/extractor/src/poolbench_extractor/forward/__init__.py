"""Batches through the model: `batching` makes them, `capture` runs one and keeps states and signals; `inflow` and
`gradients` compute the signals from attention and from the loss.
"""
