"""Steering vectors to keep and to pass on: a folder with numbers and a card, and the formats of other tools.

| module | what |
|---|---|
| `card` | the card, and the folder that holds it beside the numbers |
| `of_run` | the direction of a run as a vector |
| `exporting`, `snippets` | files and scripts for other tools |
| `importing` | their files as vectors of a model |
| `serving` | vectors under names of models, in the cluster's steerer |
| `units` | the unit of strengths, and the strength that is recommended |
| `listing`, `words` | the vectors below a folder; a card in words |
"""
