"""Requests to one service: the files of texts and vectors that go in and come out."""
