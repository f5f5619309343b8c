"""Which layouts of a cache a connector can register, by the letters that engines name them with.

Layers, blocks, heads, tokens of a block (N), content: outermost first. A connector moves blocks, so the bytes that one
layer keeps of one block must lie together: layers and blocks are the two outermost, in either order. With heads further
out than blocks, a block is as many pieces as there are heads, and no registration describes it. (vLLM calls the others
"not block-compact", and narrows an engine's choice to these four where there is a connector.)
"""

from __future__ import annotations

from typing import Final

from vmmcache.errors import ConfigError

__all__ = ["LAYOUTS", "REGISTRABLE_LAYOUTS", "check_layout"]

LAYOUTS: Final = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
REGISTRABLE_LAYOUTS: Final = tuple(name for name in LAYOUTS if set(name[:2]) == {"L", "B"})


def check_layout(layout: str, connector: str) -> None:
    """See that a block of this layout is one piece in each layer.

    >>> check_layout("LBNHC", "nixl")

    Raises
    ------
    ConfigError
        It is not, or there is no such layout; with those that can be registered.
    """
    if layout in REGISTRABLE_LAYOUTS:
        return
    known = layout in LAYOUTS
    problem = f"a block lies in several pieces, and {connector} registers blocks whole" if known else "no such layout"
    raise ConfigError("layout", layout, f"{problem}; those that can be registered: {', '.join(REGISTRABLE_LAYOUTS)}")
