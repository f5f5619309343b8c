"""docs/cli.md is true: the commands on it print what it says, but for what differs from machine to machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.generate_cli import rewritten
from vmmcache.benchmarks.catalog import shipped

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
CONSOLE = re.compile(r"^```console\n\$ vmmcache ([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What differs from machine to machine, and from run to run.
VARIES = (
    # At the end of a line: milliseconds, a column as wide as its widest entry, which moves where others wrap.
    (r"(?m)( ms|\d+\.\d\d)\s*$", ""),
    (r"vmmcache \d\S*", "vmmcache VERSION"),
    (r"Linux \S+", "Linux VERSION"),
    (r"(glibc|musl)( \d[\d.]*)?", "LIBC"),
    (r"x86_64|aarch64", "MACHINE"),
    (r"MemAvailable|cgroup|configured", "SOURCE"),
    (r"0x[0-9a-f]+", "ADDRESS"),
    (r"\d+(\.\d+)?", "N"),
    (r"\bunlimited\b", "N"),
    (r"N (B|[KMGTP]iB)\b", "SIZE"),
    (r"\s+", " "),
)

# The demo of a small model: its attention and life are those of a large one, and take a moment.
TINY: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "hidden_act": "silu",
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 256,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-6,
    "vocab_size": 128,
}


def shown() -> dict[str, str]:
    """Arguments and output of every command that the page shows."""
    return dict(CONSOLE.findall(PAGE.read_text(encoding="utf-8")))


def run(*arguments: str, expected: int = 0) -> str:
    child = subprocess.run(
        [sys.executable, "-m", "vmmcache", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "88"},
    )
    assert child.returncode == expected, child.stderr
    return child.stdout


def the_same_everywhere(output: str) -> str:
    for pattern, word in VARIES:
        output = re.sub(pattern, word, output)
    return output.strip()


def rows(output: str) -> Iterator[tuple[str, ...]]:
    """What stands at the left of each line that has something there: a heading, or a verdict and on what."""
    for line in output.splitlines():
        if line[:1].strip():
            cells = re.split(r"\s{2,}", line.strip())
            yield tuple(cells[: 2 if cells[0] in ("yes", "NO") else 1])


def test_every_command_has_a_section_that_shows_its_output() -> None:
    _, _, table = run("--help").partition("Commands:")
    commands = re.findall(r"^  ([a-z]+)  ", table, re.MULTILINE)
    sections = re.findall(r"^## ([a-z]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(sections) == commands
    assert sorted(arguments.split()[0] for arguments in shown()) == commands


def test_probe_prints_what_the_page_shows() -> None:
    (arguments,) = (arguments for arguments in shown() if arguments.startswith("probe"))
    assert the_same_everywhere(run(*arguments.split())) == the_same_everywhere(shown()[arguments])


def test_the_object_of_a_probe_has_the_keys_that_the_page_shows() -> None:
    (block,) = re.findall(r"^```text\n(\{.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    schema = (ROOT / "vmmcache" / "schemas" / "probe.schema.json").read_text(encoding="utf-8")
    words = set(re.findall(r'"([\w:]+)"', block)) - {"cuda:0"}
    assert len(words) > 30
    assert [word for word in sorted(words) if f'"{word}"' not in schema] == []


def test_selftest_prints_the_lines_that_the_page_shows() -> None:
    output = run("selftest", "host")
    printed = {the_same_everywhere(line) for line in output.splitlines()}
    expected = [the_same_everywhere(line) for line in shown()["selftest host"].splitlines() if line != "..."]
    promises = [sum(map(int, re.findall(r"\d+", text.splitlines()[-1]))) for text in (output, shown()["selftest host"])]
    assert promises[0] == promises[1], "run python docs/generate_cli.py selftest"
    assert len(expected) > 8
    assert [line for line in expected if line not in printed] == []


def test_plan_prints_what_the_page_shows() -> None:
    # Arithmetic: every figure is the same everywhere, and so writing the page anew changes nothing.
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, ["plan"]) == page
    (shown_plan,) = (output for arguments, output in shown().items() if arguments.startswith("plan"))
    assert rewritten(page.replace(shown_plan, "something else\n"), ["plan"]) == page


def test_bench_prints_what_the_page_shows() -> None:
    # Counts, which are the same everywhere; what follows them is about the machine.
    page, _, _ = shown()["bench growth"].partition("Python ")
    printed, machine, verdict = run("bench", "growth").partition("Python ")
    assert printed.split() == page.split()
    assert machine
    assert verdict.endswith("every target holds\n")


def test_every_shipped_benchmark_has_its_row_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## bench")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(shipped())


def test_map_prints_what_the_page_shows() -> None:
    (arguments,) = (arguments for arguments in shown() if arguments.startswith("map"))
    assert the_same_everywhere(run(*arguments.split())) == the_same_everywhere(shown()[arguments])


def test_demo_prints_the_rows_that_the_page_shows(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY), encoding="utf-8")
    output = run("demo", "--device", "host", "--model", str(file), "--tokens", "8")
    # The last sentence is all figures.
    page, _, _ = shown()["demo"].partition("Everything held, in ")
    again, held, _ = output.partition("Everything held, in ")
    assert held
    assert ("yes", "logits bitwise equal") in rows(page)
    assert list(rows(again)) == list(rows(page))


def test_what_is_not_the_same_everywhere_is_all_that_is_left_out() -> None:
    line = "memory yes 17.99 GiB of 23.54 GiB free, by MemAvailable 0.43 "
    assert the_same_everywhere(line) == "memory yes SIZE of SIZE free, by SOURCE"
    assert the_same_everywhere("rdma no 0.03") != the_same_everywhere("rdma yes 0.03")


def test_every_variable_that_the_code_reads_is_on_the_page() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("vmmcache", "drivers")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "testing" not in path.parts  # what the conformance suite tells its own child process
    )
    page = PAGE.read_text(encoding="utf-8")
    variables = set(re.findall(r"\bVMMCACHE_[A-Z_]+", code))
    assert variables >= {"VMMCACHE_HOST_MEMORY", "VMMCACHE_PROBE_TIMEOUT_S"}
    assert [name for name in sorted(variables) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("command", ["bench", "probe", "demo", "map"])
def test_every_option_of_a_command_is_on_the_page(command: str) -> None:
    options = set(re.findall(r"--[a-z]+", run(command, "--help"))) - {"--help"}
    page = PAGE.read_text(encoding="utf-8")
    assert [option for option in sorted(options) if option not in page] == []
