"""L2-regularised logistic probes: one interface, many probes on one matrix at once."""

from poolbench_prober.solver.cpu import fit_probes
from poolbench_prober.solver.interface import ProbeFit

__all__ = ["ProbeFit", "fit_probes"]
