"""The report of a trade-off, which `demo` and `sweep` print and write: sentences, tables, figures, the HTML page."""
