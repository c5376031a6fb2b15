"""D1: the separability of one concept, at one layer by one strategy. `core` is where to start reading."""
