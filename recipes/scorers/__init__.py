"""The recipe of `assets/scorers`: the scorers of `make demo`, and of real text."""
