"""Plan cases: a layout, a workload and a quota as JSON, and the answer as JSON.

The names are those that the command line documents. A key is known, or a remark, or refused: a misspelt key that is
silently left out is a plan for another workload.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vmmcache.errors import ConfigError
from vmmcache.planning.layers import Attention, Buffer, Ssm
from vmmcache.planning.layout import CacheLayout
from vmmcache.planning.result import Plan
from vmmcache.planning.workload import Batch, Request

__all__ = ["answer", "batch_as_dict", "is_case", "read_case"]

SWITCHES = ("sustained", "token_exact", "allow_growth")
OPTIONS = ("quota", "granule", "max_util_for_resume", "scratch_rewind", "pool_ratio", "arrangement", *SWITCHES)
# Keys that anything may have, for whoever reads the file.
REMARKS = ("about", "comment", "description", "name", "schema")
# Called otherwise in Python, where the length of a block is not in doubt.
JSON_NAMES = {"nbytes": "bytes_per_block"}


def is_case(content: Mapping[str, Any]) -> bool:
    """Whether a JSON object means to be a plan case rather than a model's config.json."""
    return "layers" in content or "tokens_per_block" in content


def read_case(content: Mapping[str, Any]) -> tuple[CacheLayout, dict[str, Any]]:
    """Read a plan case.

    Returns
    -------
    layout : CacheLayout
    arguments : dict
        Keyword arguments for `vmmcache.planning.plan`, those that the case has.

    Raises
    ------
    ConfigError
        A key is missing, unknown or wrong; the error says where.
    """
    known = ("tokens_per_block", "layers", "constraints", "typical_step", *OPTIONS)
    fields = _fields("", content, required=("tokens_per_block", "layers"), known=known)
    layers = [_layer(f"layers[{place}]", layer) for place, layer in enumerate(_list("layers", fields["layers"]))]
    layout = CacheLayout(fields["tokens_per_block"], layers)
    arguments = {name: fields[name] for name in OPTIONS if fields.get(name) is not None}
    for name in SWITCHES:
        if not isinstance(arguments.get(name, False), bool):
            raise ConfigError(name, arguments[name], "must be true or false")
    if fields.get("constraints") is not None:
        constraints = enumerate(_list("constraints", fields["constraints"]))
        arguments["constraints"] = [_batch(f"constraints[{place}]", batch) for place, batch in constraints]
    if fields.get("typical_step") is not None:
        arguments["typical_step"] = _batch("typical_step", fields["typical_step"])
    return layout, arguments


def answer(plan: Plan) -> dict[str, Any]:
    """A plan as a JSON object."""
    content: dict[str, Any] = {"schema": 1, "groups": []}
    for group in plan.groups:
        entry: dict[str, Any] = {
            "life_cycles": [
                {"window": cycle.window, "sink_blocks": cycle.sink_blocks, "kind": cycle.kind}
                for cycle in group.life_cycles
            ],
            "slot_bytes": list(group.slot_bytes),
            "min_slots": group.min_slots,
        }
        if plan.quota is not None:
            entry |= {"slots": group.slots, "nbytes": group.nbytes}
        content["groups"].append(entry)
    content["min_slots"] = [group.min_slots for group in plan.groups]
    content["demand"] = [list(need) for need in plan.demand]
    content["resolved_constraints"] = [batch_as_dict(batch) for batch in plan.resolved_constraints]
    if plan.quota is None:
        return content
    content["quota"] = {"configured": plan.quota, "usable": plan.usable, "granule": plan.granule}
    content["nbytes"] = plan.nbytes
    content["min_nbytes"] = plan.min_nbytes
    content["reductions"] = [
        {
            "batch": reduction.batch,
            "request": reduction.request,
            "capacity": list(reduction.capacity),
            "history_length": list(reduction.history_length),
        }
        for reduction in plan.reductions
    ]
    content["binding"] = None if plan.binding is None else plan.binding._asdict()
    return content


def batch_as_dict(batch: Batch) -> dict[str, Any]:
    """A batch in the words of a plan case."""
    return {
        "system_prompt_length": batch.system_prompt_length,
        "requests": [
            {
                "capacity": request.capacity,
                "history_length": request.history_length,
                "policy": str(request.policy),
                "count": request.count,
            }
            for request in batch.requests
        ],
    }


def _layer(where: str, content: object) -> Attention | Ssm:
    known = ("name", "kind", "window", "sink_tokens", "count", "buffers")
    fields = _fields(where, content, required=("kind", "buffers"), known=known)
    buffers = []
    for place, entry in enumerate(_list(f"{where}.buffers", fields["buffers"])):
        inside = f"{where}.buffers[{place}]"
        names = ("role", "bytes_per_block")
        buffer = _fields(inside, entry, required=names, known=(*names, "tokens_per_block"))
        with _within(inside):
            buffers.append(Buffer(buffer["role"], buffer["bytes_per_block"], buffer.get("tokens_per_block")))
    window, sinks, count = fields.get("window"), fields.get("sink_tokens"), fields.get("count")
    name = fields.get("name")
    with _within(where):
        if fields["kind"] == "attention":
            return Attention(buffers, window, 0 if sinks is None else sinks, name, 1 if count is None else count)
        if fields["kind"] != "ssm":
            raise ConfigError("kind", fields["kind"], "must be 'attention' or 'ssm'")
        for field, value in (("window", window), ("sink_tokens", sinks)):
            if value:
                raise ConfigError(field, value, "an SSM layer has none")
        return Ssm(buffers, name, 1 if count is None else count)


def _batch(where: str, content: object) -> Batch:
    fields = _fields(where, content, required=("requests",), known=("requests", "system_prompt_length"))
    requests = []
    for place, entry in enumerate(_list(f"{where}.requests", fields["requests"])):
        inside = f"{where}.requests[{place}]"
        known = ("capacity", "history_length", "policy", "count")
        request = _fields(inside, entry, required=("capacity",), known=known)
        with _within(inside):
            given = {name: request[name] for name in known if request.get(name) is not None}
            requests.append(Request(**given))
    with _within(where):
        return Batch(requests, fields.get("system_prompt_length") or 0)


def _fields(where: str, content: object, *, required: Sequence[str], known: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise ConfigError(where or "case", content, "must be a JSON object")
    prefix = f"{where}." if where else ""
    for name in content:
        if name not in known and name not in REMARKS and not str(name).startswith("_"):
            raise ConfigError(f"{prefix}{name}", content[name], "unknown; known here are " + ", ".join(known))
    for name in required:
        if content.get(name) is None:
            raise ConfigError(f"{prefix}{name}", None, "missing")
    return content


def _list(where: str, content: object) -> list[Any]:
    if not isinstance(content, list):
        raise ConfigError(where, content, "must be a JSON array")
    return content


@contextmanager
def _within(where: str) -> Iterator[None]:
    """Let a ConfigError say where in the case its field stands."""
    try:
        yield
    except ConfigError as error:
        problem = str(error).removeprefix(str(ConfigError(error.field, error.value, "")))
        raise ConfigError(f"{where}.{JSON_NAMES.get(error.field, error.field)}", error.value, problem) from None
