"""The plug-in of Django, on real databases and with real processes."""
