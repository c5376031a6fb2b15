"""The contracts between driver and services: keys, tables, tasks and results.

Arrow is not imported here, so that reading a configuration does not load it.
"""

from typing import Any

#: A row of a table, by column.
Row = dict[str, Any]
