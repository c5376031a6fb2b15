"""The fuzz: mutated messages and files before every reader of the project, in a process that may die."""
