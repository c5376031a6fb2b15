"""The steerer's engine of tests and the console's browser, for tests of both."""

from driver.tests.console.conftest import browser, opened  # noqa: F401
from services.steerer.tests.conftest import host, steerer_config, tiny_model, unit_vectors  # noqa: F401
