"""How Holmes trains its probes: the recipe of its released code, and that of its paper."""

from poolbench_prober.probing.published.recipes import PAPER, RECIPES, RELEASED, Recipe, fit

__all__ = ["PAPER", "RECIPES", "RELEASED", "Recipe", "fit"]
