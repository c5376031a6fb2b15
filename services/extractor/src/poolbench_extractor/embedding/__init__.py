"""Vectors of single texts: `texts` serves `POST /embed`; `module` serves `PoolingEncoder`."""
