"""Every setting that comes from the environment. Any other `POOLBENCH_` variable is refused."""

from poolbench.settings.access import STATE_FOLDER, ClusterSettings, PlaceSettings, state_folder
from poolbench.settings.base import Settings, refuse_unknown
from poolbench.settings.cluster import (
    BrokerSettings,
    ComposeSettings,
    FolderSettings,
    HttpSettings,
    KuberaySettings,
    MemorySettings,
    ProcessSettings,
    S3Settings,
    ScalingSettings,
)
from poolbench.settings.services import (
    ConsoleSettings,
    ExtractorSettings,
    GateSettings,
    LogSettings,
    PoolerSettings,
    ScorerSettings,
    SteererSettings,
    TraceSettings,
)
