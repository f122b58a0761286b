"""Redis: clients, connections, Lua scripts, and the meaning of errors."""
