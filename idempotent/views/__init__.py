"""What people see of keys and letters, for the command line and the console: rows, groups of errors, words."""
