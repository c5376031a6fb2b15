"""Installation and deployment: on this machine, and in Docker Compose."""
