"""The revisions. A released revision is never edited, so it keeps its own copy of the table definitions."""
