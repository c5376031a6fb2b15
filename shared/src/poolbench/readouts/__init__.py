"""Readouts: how the parts that a supervised strategy pools become one vector, learned from training rows only.

A strategy whose `readout` names one pools several vectors (parts) per passage. The prober fits the readout on the
training rows of each fold, under the labels of the probe that will use it, and applies it to the held-out rows.
NumPy only.
"""

from poolbench.readouts.registry import READOUTS, FittedReadout, Training

__all__ = ["READOUTS", "FittedReadout", "Training"]
