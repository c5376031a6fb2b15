"""Folders of models: which may be named, where those under the scorers are, why one cannot be loaded."""
