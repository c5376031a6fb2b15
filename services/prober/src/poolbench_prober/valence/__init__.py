"""Preference shift: how far a change of a model moves words towards liked words and away from disliked ones."""

from poolbench_prober.valence.core import Shift, shifts
