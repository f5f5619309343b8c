"""What `vmmcache plan` plans: a model's config.json with a workload from the command line, or a plan case."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vmmcache.errors import ConfigError
from vmmcache.planning import Batch, CacheLayout, Plan, Request, plan
from vmmcache.planning.capacity import Capacity, capacity_of
from vmmcache.planning.case import read_case
from vmmcache.planning.demand import Demand
from vmmcache.planning.footprint import Footprint, default_granule
from vmmcache.planning.layout import as_arrangement
from vmmcache.planning.limits import MAX_SIZE
from vmmcache.planning.models import read_model
from vmmcache.units import MIB, format_bytes, parse_bytes

__all__ = ["Subject", "subject_of_case", "subject_of_model"]

# Options that say something about a model or its use; a plan case says it itself.
OF_A_MODEL = (
    "block_size",
    "kv_dtype",
    "ssm_dtype",
    "tp",
    "pp",
    "dcp",
    "stage",
    "sink_tokens",
    "max_len",
    "concurrency",
    "arrangement",
)


class Subject(NamedTuple):
    """Something that can be planned for any quota."""

    title: str
    facts: tuple[str, ...]
    """What was read, in words."""
    layout: CacheLayout
    quota: int | None
    granule: int
    make: Callable[[int | None], Plan]
    """The plan for a quota."""
    length: int | None
    """Tokens of the requests to count; None where the workload is the case's own."""
    upper: int
    """Tokens beyond which no request goes."""
    asked: Mapping[str, Any]
    """For JSON: how the model was read."""

    def request_nbytes(self) -> int:
        """Bytes of the slots of one request of the length, before anything rounds to the granule."""
        return _request_nbytes(self.layout, self.length or 1)

    def at(self, quota: int | None) -> Plan:
        """The plan for another quota, whatever it has to say besides."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.make(quota)

    def capacity(self, planned: Plan) -> Capacity:
        """What a plan serves."""
        return capacity_of(planned, self.length or self.layout.tokens_per_block, self.upper)


def subject_of_case(name: str, content: Mapping[str, Any], options: Mapping[str, Any]) -> Subject:
    """A plan case; only quota and granule can be set from outside.

    Raises
    ------
    ConfigError
        The case is wrong, or an option belongs to a model.
    """
    for option in OF_A_MODEL:
        if options[option] is not None:
            problem = "says something about a model, and the file is a plan case"
            raise ConfigError("--" + option.replace("_", "-"), options[option], problem)
    layout, arguments = read_case(content)
    own = arguments.pop("quota", None)
    quota = _size("--quota", options["quota"]) if options["quota"] else own
    granule = _size("--granule", options["granule"]) if options["granule"] else arguments.pop("granule", None)
    arguments.pop("granule", None)
    if granule is None:
        # The quota may be wrong in any way; the planner is the one to say so.
        granule = default_granule(quota) if isinstance(quota, int) else 2 * MIB

    def make(size: int | None) -> Plan:
        return plan(layout, size, granule, **arguments)

    facts = (f"blocks of {layout.tokens_per_block} tokens, {sum(layer.count for layer in layout.layers)} layers",)
    return Subject(_title(name), facts, layout, quota, granule, make, None, MAX_SIZE, {})


def subject_of_model(name: str, content: Mapping[str, Any], options: Mapping[str, Any]) -> Subject:
    """A model, with requests that decode at --max-len tokens.

    Raises
    ------
    ConfigError
        The config or an option is wrong.
    """
    reading = ("block_size", "kv_dtype", "ssm_dtype", "tp", "pp", "dcp", "stage", "sink_tokens")
    model = read_model(content, **{option: options[option] for option in reading if options[option] is not None})
    layout = model.layout
    length = options["max_len"]
    if length is None:
        length = model.max_length
    if length is None:
        if any(cycle.kind == "attention" for cycle in layout.life_cycles):
            raise ConfigError("--max-len", None, "the config does not say how long sequences get; give it")
        length = 1
    quota = _size("--quota", options["quota"]) if options["quota"] else None
    granule = _size("--granule", options["granule"]) if options["granule"] else default_granule(quota or 1)
    concurrency = options["concurrency"]
    arrangement = as_arrangement(options["arrangement"] or "block-major")
    constraints = [] if concurrency is None else [Batch([Request(length, length - 1, count=concurrency)])]

    def make(size: int | None) -> Plan:
        # As many requests as there may be, so that rounding to granules does not blur their proportions.
        step = Batch([Request(length, length - 1, count=_crowd(layout, granule, length, size))])
        return plan(layout, size, granule, constraints=constraints, typical_step=step, arrangement=arrangement)

    ranks = "".join(f", {name} {options[name]}" for name in ("tp", "pp", "dcp") if (options[name] or 1) > 1)
    stage = f", stage {model.stage}" if (options["pp"] or 1) > 1 else ""
    read = f"{model.model_type}, {model.num_layers} layers, {model.kv_dtype} cache"
    facts = (
        f"{read}, blocks of {layout.tokens_per_block} tokens{ranks}{stage}",
        f"granule {format_bytes(granule)}, {arrangement}",
    )
    asked = {"model_type": model.model_type, "kv_dtype": model.kv_dtype, "stage": model.stage}
    upper = MAX_SIZE if model.max_length is None else max(model.max_length, length)
    return Subject(_title(name), facts, layout, quota, granule, make, length, upper, asked)


def _crowd(layout: CacheLayout, granule: int, length: int, quota: int | None) -> int:
    """About as many requests of a length as the quota holds."""
    return max(1, min((quota or granule) // _request_nbytes(layout, length), 1 << 20))


def _request_nbytes(layout: CacheLayout, length: int) -> int:
    needs = Demand(layout).of(Batch([Request(length, length - 1)]))
    return Footprint(layout, 1, "block-major").total(needs)


def _title(name: str) -> str:
    """A model's name, or what a person calls its file: many are called config.json, and their folders differ."""
    path = Path(name)
    return path.parent.name if path.name == "config.json" and path.parent.name else path.name


def _size(option: str, text: str) -> int:
    return parse_bytes(text, field=option)
