"""Objects in any S3 service: the store, and the client below it with its retries, clock, credentials and uploads."""

from poolbench.storage.s3.store import S3Store
