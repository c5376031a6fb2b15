"""The contract between a suite and the frame: what a suite is, how it is found, and what it is given."""

#: Presets of a command, or of a call, that names none: of the demo model, whose values help shows as defaults, and of a
#: pretrained one, whose texts need other strengths.
PRESET, PRESET_OF_PRETRAINED = "demo", "small"
