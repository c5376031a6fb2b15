"""The best steering vector of a concept, with a figure that its choice does not raise."""
