"""Sphinx settings. The build is run with warnings as errors and with every cross reference checked (``make docs``)."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version

from sphinx.application import Sphinx

project = "vmmcache"
author = "the vmmcache authors"
release = version = installed_version("vmmcache")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "examples"]
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["vmmcache.css"]
html_title = f"vmmcache {release}"
html_show_copyright = False

# A page may link to a heading of another page; the anchors are the ones that code hosts make.
myst_heading_anchors = 3

# Quotes and dashes are typed as they are meant: many stand in commands, which people copy.
smartquotes = False

# In docstrings `name` in single backquotes is code, of this package or not.
default_role = "code"
napoleon_google_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"

# The build needs no network, so what other projects document is no link here.
nitpick_ignore_regex = [
    (r"py:class", r"(array|collections\.abc|contextlib|pathlib|os|torch|prometheus_client|transformers)\..+"),
    (r"py:class", r"ProcessGroup|Store"),  # of torch.distributed
    # Names of integers and strings, not classes: `Bytes` says in which unit, `HandleType` which words there are.
    (r"py:class", r"(vmmcache\.(units|driver)\.)?(Bytes|Address|HandleType)"),
    # Words of NumPy-style types.
    (r"py:class", r'callable|collection|exception|iterable|optional|path-like|sequences?|default .+|\{?".+"\}?'),
    # Types of the planner's inside: a choice of two words, an exact number, one of two kinds of layer.
    (r"py:class", r"Arrangement|Part|(fractions\.)?Fraction"),
    # A type variable: what is given comes back as the same kind.
    (r"py:class", r"vmmcache\.cache\.warmup\.Ids"),
    # Inside of connectors: tables of addresses, a version, a lock.
    (r"py:class", r"(vmmcache\.connectors\.(extents|cards)\.)?(Extents?|Version|Copy)|threading\.RLock"),
    # In the signature of what only vmmcache itself makes.
    (r"py:class", r"vmmcache\.connectors\.leases\.LeaseBook"),
    (r"py:class", r"vmmcache\.(sharing\._mirror\.Mirror|sharing\._link\.Link|memory\.lifetime\.Lifetime)"),
    (r"py:class", r"(vmmcache\.cache\.scratch\.)?Scratch|Ledger"),
    (r"py:class", r"(vmmcache\.cache\.ranks\._base\.)?Settled"),
    # A choice of words, an array of integers, one of four types.
    (r"py:class", r"Mode|Operation|SlotArray|Fact"),
]


def _before_napoleon(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Make up for two things that napoleon does not read as NumPy style means them."""
    if what in {"attribute", "data", "property"} and lines:
        # It takes the head of "Where from: a, b" for a type; an empty comment in front has no colon to be misled by.
        lines[:0] = ["..", ""]
    for number in reversed(range(len(lines))):
        # "a, b : int" in a list of attributes stands for two of them.
        if match := re.fullmatch(r"(\w+(?:, \w+)+)( : .+)", lines[number]):
            text = _indented(lines[number + 1 :])
            entries = [[f"{attribute}{match[2]}", *text] for attribute in match[1].split(", ")]
            lines[number : number + 1 + len(text)] = [line for entry in entries for line in entry]


def _indented(lines: list[str]) -> list[str]:
    end = next((number for number, line in enumerate(lines) if line[:1] not in {"", " "}), len(lines))
    return lines[:end]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
