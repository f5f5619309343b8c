"""Plug-ins that register well and misbehave when they are probed, as vendors' libraries do."""
