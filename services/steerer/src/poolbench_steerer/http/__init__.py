"""The steerer over HTTP: ``verbs`` (texts, perplexities), ``vectors``, ``tokenizer``, ``completions`` (the OpenAI API).

``steering`` is what a request may say of steering, ``bounds`` how much a request may hold, ``admission`` how many
texts may wait, ``values`` how messages quote what was received.
"""
