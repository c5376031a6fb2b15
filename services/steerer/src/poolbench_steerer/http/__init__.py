"""The steerer over HTTP: `verbs` (texts, perplexities), `vectors`, `tokenizer`, `completions` (the OpenAI API).

`steering` is the part of a request about steering, `bounds` limits the size of a request, `admission` the number of
waiting texts.
"""
