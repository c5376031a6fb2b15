"""Steering in vLLM's own OpenAI server: `vllm serve MODEL --steering`.

`option` is what vLLM loads as a plug-in: it adds the option, and sets the engine's arguments. `files` reads vectors.
`middleware` sits before vLLM's routes: at start it runs the self-test, and of a request it takes the fields about
steering, by `exchange`, whose words `fields` reads. `texts` runs such requests in the server's engine.
"""
