"""External inputs of a run in the object store: activations, scorers and sparse autoencoders."""
