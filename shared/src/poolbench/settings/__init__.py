"""Every setting that comes from the environment. Any other `POOLBENCH_` variable is refused."""

from poolbench.settings.base import Settings, refuse_unknown
from poolbench.settings.cluster import (
    ComposeSettings,
    FolderSettings,
    HttpSettings,
    KuberaySettings,
    LogSettings,
    MemorySettings,
    PlaceSettings,
    ProcessSettings,
    RestrictedS3Settings,
    S3Settings,
    TraceSettings,
)
from poolbench.settings.services import ExtractorSettings, GateSettings, ScorerSettings, SteererSettings

__all__ = [
    "ComposeSettings",
    "ExtractorSettings",
    "FolderSettings",
    "GateSettings",
    "HttpSettings",
    "KuberaySettings",
    "LogSettings",
    "MemorySettings",
    "PlaceSettings",
    "ProcessSettings",
    "RestrictedS3Settings",
    "S3Settings",
    "ScorerSettings",
    "Settings",
    "SteererSettings",
    "TraceSettings",
    "refuse_unknown",
]
