"""What may be published of a run of any suite: the run itself; and where any release comes from.

A release is a folder with a card, a manifest and checksums, which is written completely or not at all.
"""
