"""Every setting that comes from the environment. Any other `POOLBENCH_` variable is refused."""

from poolbench.settings.base import Settings, refuse_unknown
from poolbench.settings.cluster import (
    STATE_FOLDER,
    BrokerSettings,
    ComposeSettings,
    FolderSettings,
    HttpSettings,
    KuberaySettings,
    MemorySettings,
    PlaceSettings,
    ProcessSettings,
    RestrictedS3Settings,
    S3Settings,
    ScalingSettings,
    state_folder,
)
from poolbench.settings.observation import LogSettings, TraceSettings
from poolbench.settings.services import ExtractorSettings, GateSettings, PoolerSettings, ScorerSettings, SteererSettings

__all__ = [
    "STATE_FOLDER",
    "BrokerSettings",
    "ComposeSettings",
    "ExtractorSettings",
    "FolderSettings",
    "GateSettings",
    "HttpSettings",
    "KuberaySettings",
    "LogSettings",
    "MemorySettings",
    "PlaceSettings",
    "PoolerSettings",
    "ProcessSettings",
    "RestrictedS3Settings",
    "S3Settings",
    "ScalingSettings",
    "ScorerSettings",
    "Settings",
    "SteererSettings",
    "TraceSettings",
    "refuse_unknown",
    "state_folder",
]
