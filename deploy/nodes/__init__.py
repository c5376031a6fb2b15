"""One Ray node per machine or container: a head, and workers that offer places for services."""
