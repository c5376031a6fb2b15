"""How clearly the features of a sparse autoencoder tell two stories about a subject apart (CE-Bench).

compared = StoryPairs.read(Pairs.from_table(stories), tables)
contrast(compared, params)    -> Contrast(measures, subjects)
features_by_subject(compared) -> the differences of single features
"""

from poolbench_prober.contrast.by_feature import features_by_subject
from poolbench_prober.contrast.core import Contrast, StoryPairs, contrast
from poolbench_prober.contrast.pairs import Pairs
