"""Batches through the model: ``batching`` makes them, ``capture`` runs one with states and signals of the asked blocks;
``inflow`` and ``gradients`` are the signals from attention and from the loss.
"""
