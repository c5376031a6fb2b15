"""The recipe of `assets/demo_personas`: fine-tunes that love some words of a domain, and neutral ones."""
