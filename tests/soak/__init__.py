"""Soak: workers at work for an hour, whose memory and descriptors have to stay as they are."""
