"""Benchmarks that need nothing but the installed package: ``vmmcache bench``. Each is a module with a `measure`."""
