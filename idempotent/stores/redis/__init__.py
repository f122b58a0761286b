"""Redis: clients, connections, Lua scripts, and the translation of errors."""
