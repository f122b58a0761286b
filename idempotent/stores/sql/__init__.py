"""SQL databases: connections, cursors, dialects and the translation of driver errors."""
