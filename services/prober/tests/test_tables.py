"""Tables of measures, directions and scores follow the contracts."""

from poolbench.errors import CellError
from poolbench_prober.tables import directions_table, measures_table, scores_table


def test_tables_follow_the_contracts(planted):
    failed = {**planted.directions, "C2": CellError("collapsed", "flat")}
    table = directions_table(failed, 24)
    row = table["direction_id"].to_pylist().index("C2")
    assert table["vector"][row].as_py() is None
    assert table["status"][row].as_py() == "collapsed"
    assert scores_table(planted).num_rows == 180
    assert measures_table(planted.measures).num_rows == len(planted.measures)
