"""The queue tasks: ``params`` say what is asked, ``plan`` and ``draws`` which texts that makes, ``handlers`` have them
generated and write their ``tables``.
"""

from poolbench_steerer.tasks.handlers import continue_passages, generate

__all__ = ["continue_passages", "generate"]
