"""Settings from files, checks of arguments, and functions of the user."""
