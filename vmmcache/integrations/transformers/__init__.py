"""A cache for the models of Hugging Face `transformers` that grows where it stands (extra ``transformers``).

`ExtensibleCache` is given to ``generate`` or to a model's forward pass as any cache of the library's own. The layers
are public for whoever builds a cache of a kind that no configuration describes.
"""

from __future__ import annotations

__all__ = [
    "ExtensibleCache",
    "ExtensibleHybridLayer",
    "ExtensibleHybridWindowLayer",
    "ExtensibleIndexedLayer",
    "ExtensibleLayer",
    "ExtensibleWindowLayer",
    "Settings",
]

from vmmcache.integrations.transformers.cache import ExtensibleCache
from vmmcache.integrations.transformers.hybrid import ExtensibleHybridLayer, ExtensibleHybridWindowLayer
from vmmcache.integrations.transformers.indexed import ExtensibleIndexedLayer
from vmmcache.integrations.transformers.layer import ExtensibleLayer
from vmmcache.integrations.transformers.settings import Settings
from vmmcache.integrations.transformers.window import ExtensibleWindowLayer
