"""The journal of an emulated library, read."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """One call in the journal."""

    sequence: int
    pid: int
    thread: int
    call: str
    arguments: dict[str, int | str]
    code: int
    text: str

    @classmethod
    def of(cls, line: str) -> Record:
        """Read a line of the journal."""
        fields = json.loads(line)
        arguments: dict[str, int | str] = {}
        for name, value in re.findall(r"(\w+)=(\S+)", fields["text"]):
            arguments[name] = int(value, 0) if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", value) else value
        return cls(arguments=arguments, **fields)
