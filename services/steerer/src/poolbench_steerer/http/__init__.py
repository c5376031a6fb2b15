"""The steerer over HTTP: ``verbs`` (texts and perplexities), ``vectors``, ``completions`` (the OpenAI API).

``steering`` is what a request may say of steering, ``admission`` how many texts may wait.
"""
