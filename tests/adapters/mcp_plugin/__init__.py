"""Tools of MCP servers that are protected, called by the real client."""
