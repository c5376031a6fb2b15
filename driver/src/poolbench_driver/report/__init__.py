"""The frame of a run's page: `making` makes and writes the page, `reading` reads it."""
