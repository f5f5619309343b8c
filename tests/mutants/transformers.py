"""Faults in the cache for `transformers`: what is copied, what stays, what goes back."""

from __future__ import annotations

HOME = "vmmcache/integrations/transformers"
ROWS = f"{HOME}/rows.py"
STREAMS = f"{HOME}/streams.py"
LAYER = f"{HOME}/layer.py"
WINDOW = f"{HOME}/window.py"
INDEXED = f"{HOME}/indexed.py"
HYBRID = f"{HOME}/hybrid.py"
REARRANGING = f"{HOME}/rearranging.py"
CACHE = f"{HOME}/cache.py"
SETTINGS = f"{HOME}/settings.py"

HEADS = f"{HOME}/heads.py"
VISIBLE = "vmmcache/memory/visible.py"

LAYERS_TEST = "tests/integrations/test_transformers_layers.py"
MEMORY_TEST = "tests/integrations/test_transformers_memory.py"
HEADS_TEST = "tests/integrations/test_transformers_heads.py"
GENERATE_TEST = "tests/integrations/test_transformers_generate.py"
SPANS_TEST = "tests/test_tensor_span_views.py"

MUTANTS = [
    {
        "name": "transformers: views over addresses without memory, unasked",
        "path": "vmmcache/integrations/transformers/cache.py",
        "old": '        layout: str = "tokens",\n',
        "new": '        layout: str = "auto",\n',
        "tests": ["tests/integrations/test_transformers_heads.py"],
    },
    {
        "name": "transformers: a window forgets what it records",
        "path": WINDOW,
        "old": "needed = self._kept_from if self.record_past else first",
        "new": "needed = first",
        "tests": [LAYERS_TEST],
    },
    {
        "name": "transformers: a window keeps all that it was given",
        "path": WINDOW,
        "old": "if stop > rows.ready or needed >= rows.stale:",
        "new": "if stop > rows.ready:",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: a long prompt is stored whole",
        "path": WINDOW,
        "old": "if self._length == 0 and many > past and not self.record_past:",
        "new": "if False:",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: a window gives back one token too many",
        "path": WINDOW,
        "old": "self._kept_from = max(self._kept_from, stop - past)",
        "new": "self._kept_from = max(self._kept_from, stop - past + 1)",
        "tests": [LAYERS_TEST],
    },
    {
        "name": "transformers: a crop goes back to tokens that a window has left",
        "path": WINDOW,
        "old": "if first < self._kept_from and self._kept_from + self._shift > 0:",
        "new": "if False:",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: memory grows by just what is needed",
        "path": STREAMS,
        "old": "ahead = min(need // 8, 16 * step)",
        "new": "ahead = 0",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: a step is the granule",
        "path": STREAMS,
        "old": "align_up(need + ahead, step or self.granule)",
        "new": "align_up(need + ahead, self.granule)",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: memory shrinks while it grows",
        "path": STREAMS,
        "old": "run[0] = max(target, least[stream.first])",
        "new": "run[0] = target",
        "tests": [LAYERS_TEST, MEMORY_TEST],
    },
    {
        "name": "transformers: each head gets a granule, however few tokens there may be",
        "path": HEADS,
        "old": " and granule * SHARE <= needed * narrowest",
        "new": "",
        "tests": [HEADS_TEST],
    },
    {
        "name": "transformers: as many runs as there are heads and sequences",
        "path": HEADS,
        "old": " and runs <= MOST_RUNS",
        "new": "",
        "tests": [HEADS_TEST],
    },
    {
        "name": "transformers: heads are outermost on every device",
        "path": HEADS,
        "old": 'device_type == "cpu" and runs',
        "new": "runs",
        "tests": [HEADS_TEST],
    },
    {
        "name": "transformers: a window has as much for each head as a cache of all tokens",
        "path": ROWS,
        "old": "needed = max_length if window is None else min(window, max_length)",
        "new": "needed = max_length",
        "tests": [HEADS_TEST],
    },
    {
        "name": "transformers: a batch of another size forgets which layout was asked for",
        "path": ROWS,
        "old": ", self._window, self._wanted)",
        "new": ", self._window)",
        "tests": [HEADS_TEST],
    },
    {
        "name": "transformers: only the first head has memory",
        "path": STREAMS,
        "old": "targets += run * stream.runs",
        "new": "targets += run + [0] * (len(run) * (stream.runs - 1))",
        "tests": [HEADS_TEST],
    },
    {
        "name": "transformers: a piece counts one head of many",
        "path": ROWS,
        "old": "many = max(1, PIECE // stream.token)",
        "new": "many = max(1, PIECE // stream.row)",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "tensor: a strided view looks at its first run only",
        "path": VISIBLE,
        "old": "for low in range(first, first + span, step or 1):",
        "new": "for low in [first]:",
        "tests": [SPANS_TEST],
    },
    {
        "name": "transformers: granules beyond max_length are for tokens too",
        "path": ROWS,
        "old": "self.ready, self.stale = min(ready, self.max_length), stale",
        "new": "self.ready, self.stale = ready, stale",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: views made in inference mode stay in it",
        "path": ROWS,
        "old": "with torch.inference_mode(mode=False):",
        "new": "with torch.no_grad():",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: a refused close leaves a layer that shows nothing",
        "path": ROWS,
        "old": 'if seen and self.tensor.state == "committed":',
        "new": "if False:",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: what is asleep is written to where it was",
        "path": ROWS,
        "old": 'if self.tensor.state == "asleep":\n                self._forget()',
        "new": "pass",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: a compiler looks into what asks for memory",
        "path": ROWS,
        "old": "    @torch.compiler.disable  # type: ignore[untyped-decorator]  # torch gives it no type\n",
        "new": "",
        "tests": [GENERATE_TEST],
    },
    {
        "name": "transformers: sequences that stay are copied too",
        "path": REARRANGING,
        "old": "    if not len(places):\n        return\n",
        "new": "    places = torch.arange(len(order))\n",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: sequences are permuted one after the other",
        "path": REARRANGING,
        "old": "        piece.index_copy_(0, targets, piece.index_select(0, sources))\n",
        "new": "        for target, source in zip(targets, sources, strict=True):\n"
        "            piece[target] = piece[source]\n",
        "tests": [LAYERS_TEST],
    },
    {
        "name": "transformers: gradients are dropped in silence",
        "path": LAYER,
        "old": "if states.requires_grad:",
        "new": "if False:",
        "tests": [GENERATE_TEST],
    },
    {
        "name": "transformers: states of one sequence are taken for all",
        "path": LAYER,
        "old": "if _row_of(states) != stream.shape or",
        "new": "if",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: an update counts tokens before there is memory for them",
        "path": LAYER,
        "old": "        if stop > rows.ready:\n            rows.reach(0, stop)\n        rows.view(0, start, stop)",
        "new": "        self._length = stop\n        if stop > rows.ready:\n            rows.reach(0, stop)\n"
        "        rows.view(0, start, stop)",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: a hybrid layer leaves its states when sequences are selected",
        "path": HYBRID,
        "old": "        self._change_states(lambda state: state[indices.to(state.device)])\n",
        "new": "",
        "tests": [GENERATE_TEST],
    },
    {
        "name": "transformers: indexer keys of beams stay where they are",
        "path": INDEXED,
        "old": "        permute(self._index, 0, self._indexed, beam_idx)\n",
        "new": "",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: an unknown kind of layer is full attention",
        "path": CACHE,
        "old": "    if kind in THEIRS:\n",
        "new": "    if kind not in THEIRS:\n        return ExtensibleLayer(settings)\n    if kind in THEIRS:\n",
        "tests": [MEMORY_TEST],
    },
    {
        "name": "transformers: ROCm is taken for CUDA",
        "path": SETTINGS,
        "old": '"hip" if device.type == "cuda" and torch.version.hip else device.type',
        "new": "device.type",
        "tests": [MEMORY_TEST],
    },
]
