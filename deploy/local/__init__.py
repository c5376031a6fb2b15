"""One process group on this machine: Ray, the queue, the object store and the five services."""
