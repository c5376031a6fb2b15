"""What may be published: a whole run, or activations, directions, scorers and steered texts of its concepts.

Each is a folder with a card, a manifest and checksums, which is written completely or not at all.
"""
