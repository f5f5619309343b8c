"""The undo stack: last first, unless it is told to keep."""

from __future__ import annotations

import pytest

from vmmcache.memory.undo import UndoStack


def test_what_was_done_is_undone_last_first_when_something_fails() -> None:
    undone: list[int] = []
    with pytest.raises(KeyError), UndoStack() as undo:  # noqa: PT012 -- what happens inside is the test
        for number in range(3):
            undo.callback(undone.append, number)
        raise KeyError
    assert undone == [2, 1, 0]


def test_leaving_without_a_word_undoes() -> None:
    undone: list[int] = []
    with UndoStack() as undo:
        undo.callback(undone.append, 1)
    assert undone == [1]


def test_commit_keeps_what_was_done_so_far() -> None:
    undone: list[int] = []
    with UndoStack() as undo:
        undo.callback(undone.append, 1)
        undo.commit()
    assert undone == []


def test_commit_keeps_nothing_that_is_done_later() -> None:
    undone: list[int] = []
    with UndoStack() as undo:
        undo.callback(undone.append, 1)
        undo.commit()
        undo.callback(undone.append, 2)
    assert undone == [2]
