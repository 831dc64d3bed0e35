"""Results as words, tables, figures and files.

`tradeoff/` reports what `sweep` measures, `demo` the demo, `verdicts` an evaluation, `certified` a certification, and
`comparison` several mixtures. They share `tables` (a table in the terminal, in Markdown), `figures`, `style` and
`run_folder`. `stored/` has the runs that the demo compares with.
"""
