"""The OpenAI completions API, with a field `steering` in requests and a receipt in every choice."""
