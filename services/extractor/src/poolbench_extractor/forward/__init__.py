"""Forward passes of the model.

`batching` makes batches. `capture` runs a batch and captures states and signals. `inflow` computes signals from
attention, and `gradients` computes signals from the loss.
"""
