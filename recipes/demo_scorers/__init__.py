"""The recipe of `assets/demo_scorers`: the scorers of `make demo`."""
