"""A simulated cluster: the real plan, loop, queue and store, and workers whose work is time that passes at once."""
