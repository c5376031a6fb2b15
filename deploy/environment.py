"""The environment of every process of a cluster, on one machine or on many."""

from poolbench.http.gate import CALLBACK, CALLBACK_VARIABLE

#: Set unless the caller's environment says otherwise.
DEFAULTS = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # FlashInfer compiles its sampler at the first request, with nvcc, which few machines have.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # An idle cluster is to leave the cores alone; Prometheus reads metrics every 15 s (`make bench-idle`).
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
    "REPORTER_UPDATE_INTERVAL_MS": "15000",
    "RAY_metrics_report_interval_ms": "15000",
    "RAY_task_events_report_interval_ms": "10000",  # only Ray's own list of tasks reads them
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
}
#: Telemetry is off and the gate is on, whatever the caller's environment.
FIXED = {
    CALLBACK_VARIABLE: CALLBACK,
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "RAY_AUTH_MODE": "token",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "120",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_ENABLE_TELEMETRY": "0",
    # The gate is in Serve's own proxy. Both modes send requests past it, and HAProxy listens on every interface.
    "RAY_SERVE_ENABLE_HA_PROXY": "0",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it may choose a service that is not at fault; replicas have limits instead
    "RAY_worker_niceness": "0",  # replicas are the work, not a background job beside it
    "RAY_worker_register_timeout_seconds": "180",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",  # a loaded machine is not a dead proxy
    # vLLM opens process groups that listen where the machine's name resolves to, unless they are given an interface.
    # An engine lies on one node, so that loopback is enough.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_NO_USAGE_STATS": "1",
}
