"""Many callers at once: tasks, threads of a Worker, and lone callers beside them."""
