"""Every setting that comes from the environment. Any other `POOLBENCH_` variable is refused."""

from poolbench.settings.base import Settings, refuse_unknown
from poolbench.settings.cluster import (
    BrokerSettings,
    FolderSettings,
    HttpSettings,
    KuberaySettings,
    MemorySettings,
    PlaceSettings,
    ProcessSettings,
    RestrictedS3Settings,
    S3Settings,
    ScalingSettings,
)
from poolbench.settings.services import ExtractorSettings, GateSettings, ScorerSettings, SteererSettings

__all__ = [
    "BrokerSettings",
    "ExtractorSettings",
    "FolderSettings",
    "GateSettings",
    "HttpSettings",
    "KuberaySettings",
    "MemorySettings",
    "PlaceSettings",
    "ProcessSettings",
    "RestrictedS3Settings",
    "S3Settings",
    "ScalingSettings",
    "ScorerSettings",
    "Settings",
    "SteererSettings",
    "refuse_unknown",
]
