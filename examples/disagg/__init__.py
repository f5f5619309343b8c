"""The parts of ``examples/disaggregated.py``: one process computes prompts, another one goes on with them.

From the bottom: `channel` (what the two say to each other), `blocks` (where a request's blocks are, as bytes), `reader`
(moving them), `prefill` and `decode` (an engine of ``tinyllm`` each), `launch` (starting the one from the other).
"""
