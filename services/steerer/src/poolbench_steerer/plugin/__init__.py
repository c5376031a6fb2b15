"""The vLLM plug-in: per-request steering without a fork.

``spec`` says what a request asks for; ``bank`` (engine side) decides which device slot holds which vector.
In vLLM's worker ``worker`` is the entry point, ``batches`` tells it what each forward pass computes, ``rows`` maps
these tokens to requests, ``state`` holds that on the device, and ``operators`` is the custom op that changes hidden
states (``arithmetic``; ``kernel`` on GPUs) behind the ``blocks`` and counts what it changed. ``counts`` travel back to
the engine, where ``receipts`` prove the steering by them. ``supported`` and ``internals`` say which vLLM this fits.
"""

#: Key of the steering instructions in ``SamplingParams.extra_args`` and in vLLM's ``additional_config``.
WIRE_KEY = "poolbench_steering"
