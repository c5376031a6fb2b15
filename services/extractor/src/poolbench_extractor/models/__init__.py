"""Decoders: load and check them, observe their attention, and describe their blocks, width and window."""
