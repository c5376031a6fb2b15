"""The vLLM plug-in: per-request steering without a fork.

`spec` is the steering of a request; `bank` (engine side) assigns device slots to vectors. In vLLM's worker, `worker` is
the entry point, `runner` hooks into vLLM's model runners, `decoder` finds the blocks of a model and what they return
(`architectures`, or their code), `rows` maps tokens to requests, `state` holds that on the device, and `operators` is
the custom op that changes hidden states (`arithmetic`; `kernel` on GPUs) and counts the changes. `counts` travel back
to the engine, where `receipts` prove the steering. `internals` lists what the plug-in uses of vLLM.
"""

#: Key of the steering instructions in `SamplingParams.extra_args` and in vLLM's `additional_config`.
WIRE_KEY = "poolbench_steering"
