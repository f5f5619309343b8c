"""Raises while it is imported."""

raise RuntimeError("libacme.so.3 is older than this plug-in")
