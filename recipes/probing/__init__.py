"""What poolings, layers and models carry of language, on the probing sets of the real-text archives."""
