"""The suites, one folder each; the frame finds them by `poolbench_driver.contract.registry`."""
