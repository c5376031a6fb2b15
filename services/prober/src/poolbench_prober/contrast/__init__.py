"""How clearly the features of a sparse autoencoder tell two stories about a subject apart (CE-Bench).

contrast(stories, tables, params) -> Contrast(measures, subjects)
"""

from poolbench_prober.contrast.core import Contrast, contrast
