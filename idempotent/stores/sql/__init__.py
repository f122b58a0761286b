"""What the SQL checkers share: statements, dialects, connections and the meaning of driver errors."""
