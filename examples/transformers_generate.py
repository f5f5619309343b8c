"""`vmmcache.integrations.transformers` beside the library's own caches: the same answers, time and memory (B5).

  python examples/transformers_generate.py                      1k, 8k and 32k tokens of past, a few minutes
  python examples/transformers_generate.py --lengths 1024,4096 --rounds 3
  python examples/transformers_generate.py --json --svg out.svg

First three small models (all tokens, windows in turn, a linear state beside attention) generate with ExtensibleCache,
DynamicCache and StaticCache; the answers must be equal. Then all caches are measured in turns, in one run: the
processor's time for a generated token, and the peak of memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from rich.console import Console
from rich.table import Table

from vmmcache.benchmarks.transformers import BY_HEAD, CACHES, LENGTHS, OURS, Figure, figures
from vmmcache.integrations.transformers import ExtensibleCache
from vmmcache.units import format_bytes

SMALL: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: Final[dict[str, dict[str, Any]]] = {
    "llama": {},
    "gemma3_text": {"head_dim": 16, "sliding_window": 8},
    "falcon_h1": {
        "head_dim": 8,
        "mamba_d_ssm": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
    },
}
NEW: Final = 24
COLOURS: Final = {OURS: "#2f6fab", BY_HEAD: "#8250a8", "DynamicCache": "#b5483a", "StaticCache": "#5b7f3b"}
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 360, 70, 40, 40, 50


def main(arguments: list[str]) -> int:
    """Compare and measure: 0 where all answers are equal, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=_lengths, default=LENGTHS, metavar="N,N,...", help="tokens of past")
    parser.add_argument("--rounds", type=int, default=5, help="the best of how many (%(default)s)")
    parser.add_argument("--svg", type=Path, metavar="PATH", help="draw time for a token by tokens of past")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    transformers.logging.set_verbosity_error()
    equal = {name: answers_are_equal(name) for name in MODELS}
    measured = list(figures(options.lengths, options.rounds))
    if options.svg is not None:
        options.svg.write_text(picture(measured), encoding="utf-8")
    if options.json:
        print(json.dumps({"equal": equal, "figures": [figure._asdict() for figure in measured]}))
    else:
        for name, same in equal.items():
            print(f"{name}: {NEW} tokens and their logits are {'equal' if same else 'NOT EQUAL'}")
        _print(measured)
    return 0 if all(equal.values()) else 1


def answers_are_equal(name: str) -> bool:
    """Whether a small model of that type gives the same tokens with all caches, and the same logits with two."""
    config = transformers.CONFIG_MAPPING[name](**{**SMALL, **MODELS[name]})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    prompt = torch.randint(3, 64, (2, 12))

    def generate(cache: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            cache=cache,
            max_new_tokens=NEW,
            do_sample=False,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
        return output.sequences, torch.stack(output.logits)

    with ExtensibleCache(config) as cache:
        tokens, logits = generate(cache)
    dynamic_tokens, dynamic_logits = generate(transformers.DynamicCache(config=config))
    static_tokens, _ = generate(transformers.StaticCache(config, max_cache_len=prompt.shape[1] + NEW))
    return bool(
        torch.equal(tokens, dynamic_tokens)
        and torch.equal(logits, dynamic_logits)
        and torch.equal(tokens, static_tokens)
    )


def picture(measured: Sequence[Figure]) -> str:
    """Milliseconds for a token by tokens of past, one line for each cache, as SVG; both axes begin at 0."""
    widest, highest = max(figure.length for figure in measured), max(figure.seconds for figure in measured) * 1e3
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="14">Milliseconds for a generated token, by tokens of past</text>',
    ]
    for part in range(5):
        y = place(0, highest * part / 4, widest, highest)[1]
        lines.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dde2e7"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{highest * part / 4:.3g}</text>')
    for length in sorted({figure.length for figure in measured}):
        x = place(length, 0, widest, highest)[0]
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{length}</text>')
    for cache, colour in COLOURS.items():
        points = [
            place(figure.length, figure.seconds * 1e3, widest, highest) for figure in measured if figure.cache == cache
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    for number, (cache, colour) in enumerate(COLOURS.items()):
        y = TOP + 14 + 15 * number  # above where the lines begin
        lines.append(f'<text x="{LEFT + 24}" y="{y + 4}" fill="{colour}">{escape(cache)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def place(length: float, milliseconds: float, widest: float, highest: float) -> tuple[float, float]:
    """Where a figure stands in the picture."""
    return (
        LEFT + length / widest * (WIDTH - LEFT - RIGHT),
        HEIGHT - BOTTOM - milliseconds / highest * (HEIGHT - TOP - BOTTOM),
    )


def _print(measured: Sequence[Figure]) -> None:
    found = {(figure.cache, figure.length): figure for figure in measured}
    table = Table(box=None, padding=(0, 2, 0, 0))
    for header in ("tokens of past", "cache", "for a token", "against ours", "peak memory", "of what it holds"):
        table.add_column(header, justify="left" if header == "cache" else "right")
    for length in sorted({figure.length for figure in measured}):
        for cache in CACHES:
            figure = found[cache, length]
            table.add_row(
                str(length),
                cache,
                f"{figure.seconds * 1e3:.2f} ms",
                f"{figure.seconds / found[OURS, length].seconds:.2f}",
                format_bytes(figure.peak),
                f"{figure.peak / figure.held:.2f}",
            )
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(table)


def _lengths(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
