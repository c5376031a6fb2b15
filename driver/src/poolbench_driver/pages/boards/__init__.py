"""Boards of any suite: entrants ranked over blocks, and what tells them apart."""
