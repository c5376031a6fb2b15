"""What poolings, layers and models carry of language, on the probing sets that ship."""
