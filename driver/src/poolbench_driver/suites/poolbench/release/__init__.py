"""What may be published of a run's concepts: activations, directions, scorers and steered texts.

Each is a folder with a card, a manifest and checksums, which is written completely or not at all.
"""
