"""Train one concept's scorer or import a published one, calibrate it, and report its figures."""
