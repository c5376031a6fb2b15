"""`python -m poolbench_driver.cli`."""

from poolbench_driver.cli import main

main()
