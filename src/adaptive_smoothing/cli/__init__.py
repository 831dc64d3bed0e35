"""One file a verb. Reading one takes seconds, for torch: `main` does so only for the verb that was called."""

# What shells report for a command that Ctrl-C ended.
INTERRUPTED = 130
