"""The parts of a small inference engine, for ``examples/engine.py`` and ``examples/disaggregated.py``.

From the bottom: `exact` and `paged` (arithmetic), `shape` and `model` (the decoder), `runner` (one step over the
manager's views), `scheduler` (which request gets slots, over the manager's slots), `life` (what a manager is asked, in
which order), `launch` and `ranks` (several processes).
"""
