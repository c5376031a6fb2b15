"""`python -m deploy.docker.healthy`: exit 0 once every service answers over HTTP; the head container's check."""

import sys

from deploy.local.apps import unhealthy
from poolbench.settings import PlaceSettings

if __name__ == "__main__":
    missing = unhealthy("http://127.0.0.1:8000", PlaceSettings.load().token.get_secret_value(), wait_s=10)
    print(f"no answer from {', '.join(missing)}" if missing else "healthy")
    sys.exit(bool(missing))
