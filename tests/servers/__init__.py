"""Real servers, each started on a free port and ended by its test: Redis, S3, services behind HTTP."""
