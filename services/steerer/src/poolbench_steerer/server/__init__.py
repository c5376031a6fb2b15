"""Steering in vLLM's OpenAI server, for a replica (`completions`) and for `vllm serve MODEL --steering`.

`fields` reads what a request says about steering, `texts` runs its texts in the engine, and `facts` adds receipts and
scores to its answer. The others are for `vllm serve`: `option` is what vLLM loads as a plug-in, which adds the option
and sets the engine's arguments. `files` reads vectors, and `vectors` has those that requests can name. `middleware`
sits before vLLM's routes: at start it runs the self-test, and it passes requests and responses on, by `exchange`.
"""
