"""The revisions. A released one is never edited; its definitions are its own."""
