"""The page kit: boards of entrants, figures, tables and texts, from which suites and the frame make pages."""
