"""A soak test: runs of the main job on a cluster of several machines, while one part after another is broken."""
