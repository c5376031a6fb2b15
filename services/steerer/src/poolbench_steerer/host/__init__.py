"""The owner of the engine: which model is loaded, who may use it, and its restart after a death.

Handlers are synchronous and called from worker threads, HTTP routes run on another event loop; both reach the
engine through the loop that a host runs in a thread of its own. On it `keeper` loads one model at a time and lends
it to jobs, and repeats what a death has interrupted.
"""

from poolbench_steerer.host.host import EngineHost
