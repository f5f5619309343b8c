"""Plug-ins: the doors through which drivers, connectors and warm-up constraints come in."""
