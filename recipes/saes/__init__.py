"""Sparse autoencoders of a model's layer: `assets/demo_saes`, and those of a pretrained model."""
