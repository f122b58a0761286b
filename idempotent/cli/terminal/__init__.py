"""What the commands read from and write to a terminal: words, tables, progress, questions, logs."""
