"""The report of a trade-off, which `sweep` prints and writes: sentences, tables, figures, the HTML page."""
