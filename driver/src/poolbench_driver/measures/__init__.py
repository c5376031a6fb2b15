"""The arithmetic of D1, D2 and D3: response curves, their statistics and intervals, cosines, checks of concepts.

Tables of scores may hold the rows of many scorers; each function takes the one it is asked for. `Measure.to_row()`
gives the columns of a result row that are known here, and `details`: outcomes, such as the chosen strength, that are
not part of a row's identity.

Excess figures are `<metric>.excess` (with interval), `<metric>.null_rank` (1 is above all null directions) and
`<metric>.null_p95`; a metric beats chance if its value at the null strengths (`details["value_at_null_strengths"]`)
exceeds `null_p95`.
"""
