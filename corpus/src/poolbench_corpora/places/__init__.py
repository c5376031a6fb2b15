"""Passages in which one word at one place carries the class, in pairs, and the words that they are made of."""
