"""How much memory a KV cache needs and what a quota buys: layout + workload + bytes -> slots per pool group.

>>> from vmmcache.planning import Attention, Batch, Buffer, CacheLayout, Request, plan
>>> layer = Attention([Buffer("key", 32768), Buffer("value", 32768)], count=32)
>>> p = plan(CacheLayout(16, [layer]), quota=4 << 30, constraints=[Batch([Request(8192)])])
>>> p.groups[0].min_slots, p.groups[0].slots, p.nbytes == p.usable
(528, 2048, True)
"""

from __future__ import annotations

from vmmcache.planning.footprint import default_granule
from vmmcache.planning.layers import Attention, Buffer, Ssm
from vmmcache.planning.layout import CacheLayout, LifeCycle, PoolGroup
from vmmcache.planning.longest import longest_in, longest_request
from vmmcache.planning.notices import Binding, PlanWarning, Reduction
from vmmcache.planning.planner import plan
from vmmcache.planning.result import GroupPlan, Plan, Weights
from vmmcache.planning.warmup import EngineLimits, WarmupConstraint, context_constraint, warmup_constraints
from vmmcache.planning.workload import Batch, ConstraintPolicy, Request

__all__ = [
    "Attention",
    "Batch",
    "Binding",
    "Buffer",
    "CacheLayout",
    "ConstraintPolicy",
    "EngineLimits",
    "GroupPlan",
    "LifeCycle",
    "Plan",
    "PlanWarning",
    "PoolGroup",
    "Reduction",
    "Request",
    "Ssm",
    "WarmupConstraint",
    "Weights",
    "context_constraint",
    "default_granule",
    "longest_in",
    "longest_request",
    "plan",
    "warmup_constraints",
]
