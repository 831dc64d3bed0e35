"""The command line, one file per verb. `main` imports the file of the verb that was called, and no other."""

# The exit code that shells report for a command ended by Ctrl-C.
INTERRUPTED = 130
