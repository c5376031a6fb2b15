"""The console: runs, their boards and what stands behind each figure, as pages and as JSON."""
