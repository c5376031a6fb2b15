"""Vectors of single texts: `texts` serves `POST /embed`; `module` and `truncate` serve `PoolingEncoder`."""
