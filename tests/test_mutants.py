"""The faults that ``make mutants`` plants still fit the sources. That each is noticed is for that command to show."""

from __future__ import annotations

from tests.mutants import run


def test_no_fault_is_out_of_date() -> None:
    mutants = run.load("")
    assert mutants
    for mutant in mutants:
        assert mutant.old != mutant.new, mutant.name
