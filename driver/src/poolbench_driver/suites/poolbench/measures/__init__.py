"""Pure functions from the tables of a run to D2, D3, cosines, confounds and checks of concepts.

Tables of scores may hold the rows of many scorers; each function takes the one it is asked for. If the steered tables
hold several `direction_key` values, name one by `direction_key=`. `Measure.to_row()` gives the columns of a result row
that are known here, and `details`: outcomes, such as the chosen strength, that are not part of a row's identity. The
suite adds layer, strategy and concept, and the frame the rest.

Excess figures are `<metric>.excess` (with interval), `<metric>.null_rank` (1 is above all null directions) and
`<metric>.null_p95`; a metric beats chance if its value at the null strengths (`details["value_at_null_strengths"]`)
exceeds `null_p95`.
"""
