"""Vectors of loose texts: ``texts`` behind ``POST /embed``; ``textpooler`` and ``sentence`` behind ``encoder``, the
object with the interface of sentence-transformers, which cuts (``truncate``) and compares (``similarity``).
"""
