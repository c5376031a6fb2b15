"""L2-regularised linear probes: one interface, many probes on one matrix at once."""

from poolbench_prober.solver.batch import choose_solver, get_solver
from poolbench_prober.solver.fits import fit_folds, fit_probes, fit_ridge, fit_softmax
from poolbench_prober.solver.interface import ProbeFit, Problem, SoftmaxFit, Solution, Solver

__all__ = [
    "ProbeFit",
    "Problem",
    "SoftmaxFit",
    "Solution",
    "Solver",
    "choose_solver",
    "fit_folds",
    "fit_probes",
    "fit_ridge",
    "fit_softmax",
    "get_solver",
]
