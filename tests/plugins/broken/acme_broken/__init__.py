"""Plug-ins that are wrong, each in a way of its own. None may kill the host, and none may disappear."""
