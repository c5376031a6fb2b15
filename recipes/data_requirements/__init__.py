"""How much data the comparisons of Zhu et al. (2022) need here."""
