"""Pairs of stories about a subject, one on its high side and one on its low side, with marked words.

read_stories("planted", seed=0) -> StoriesData(rows, passages, notes)
StoryCatalog(folder).all()      -> what is known, and whether it is at hand
"""

from poolbench_corpora.stories.catalog import StoryCatalog, import_stories, read_stories
from poolbench_corpora.stories.data import STORY_PASSAGES, Protocol, StoriesData, parse_tags
