"""The contract between a suite and the frame: what a suite is, how it is found, and what it is given."""

#: The preset of a command, or of a call, that names none. Help shows its values as defaults.
PRESET = "demo"
