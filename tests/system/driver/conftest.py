"""The fixtures of the driver's own tests, for tests of the driver beside a service."""

from driver.tests import conftest as of_driver

bench, complete = of_driver.bench, of_driver.complete
quicker = of_driver.quicker
driver, environment = of_driver.driver, of_driver.environment
steered, steered_in = of_driver.steered, of_driver.steered_in
