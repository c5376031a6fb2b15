"""A model whose features are known, as a check of scores that claim to measure how interpretable an autoencoder is."""
