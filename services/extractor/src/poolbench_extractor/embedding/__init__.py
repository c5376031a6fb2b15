"""Vectors of single texts: `POST /embed` (`texts`), `POST /v1/embeddings` (`openai`), `PoolingEncoder` (`module`)."""
