"""The life of a cache, shown with real arithmetic: reserve, grow while decoding, register, sleep, wake, close.

``vmmcache demo`` is the only door. Modules here import torch, and nothing outside this package and that command imports
them.
"""
