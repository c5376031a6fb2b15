"""Runs for others: packed and signed, verified, on a board, and pushed to where others fetch them."""
