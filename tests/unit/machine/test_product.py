"""Every kind of input in every state, and every kind of event: what follows is written down, cell by cell."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from perdure.processors.machine.inputs import CommandInput, Input, ResultInput, TimerInput
from perdure.processors.machine.lifecycle import SUCCESSORS
from perdure.processors.machine.schedule import next_due_ms
from perdure.schemas import events as ev
from perdure.schemas.commands import CommandBody
from perdure.schemas.results import ResultBody
from perdure.schemas.values import RunState
from tests.unit.machine import event_product, product
from tests.unit.machine.conftest import RUN_ID, Driver
from tests.unit.machine.situations import SITUATIONS, stage

CELLS = product.play()


def test_every_cell_is_as_it_is_written_down() -> None:
    """transitions.txt says what follows each input in each situation (make tables)."""
    assert product.TABLE.read_text(encoding="utf-8") == product.table(CELLS)


def test_the_page_for_people_says_the_same() -> None:
    """docs/LIFECYCLE.md holds the same product, by state."""
    document = product.DOCUMENT.read_text(encoding="utf-8")
    assert document == product.document(product.matrix(CELLS))
    assert all(f"| {state} " in document for state in RunState)


def test_no_state_is_left_out() -> None:
    """Each of the eight states, and the run that is not there, has a situation that stands for it."""
    assert {state for state, _ in SITUATIONS.values()} == {"none", *RunState}


def test_no_kind_of_input_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member of the closed unions of inputs, commands and results is fed in each situation."""
    wanted = {*get_args(Input), *get_args(CommandBody), *get_args(ResultBody)}
    for where in SITUATIONS:
        fed: list[Any] = []
        monkeypatch.setattr(Driver, "feed", lambda _, given, fed=fed: fed.append(given))
        for feed in product.INPUTS.values():
            feed(stage(where))
        kinds = {type(given) for given in fed}
        kinds |= {type(given.command.body) for given in fed if isinstance(given, CommandInput)}
        kinds |= {type(given.result.body) for given in fed if isinstance(given, ResultInput)}
        assert wanted - kinds == set(), where


def test_every_move_is_one_that_the_lifecycle_table_has() -> None:
    """Whatever an input sets going, a run goes from state to state by legal moves only."""
    for name, row in CELLS.items():
        for where, cell in row.items():
            state = cell.state_before
            for after in cell.states:
                legal = {RunState.QUEUED} if state is None else {state, *SUCCESSORS[state]}
                assert after in legal, (name, where)
                state = after


@pytest.mark.parametrize("where", SITUATIONS)
def test_a_timer_that_fired_does_not_fire_again_at_once(where: str) -> None:
    """After what was due is done, the next timer lies in the future: the host never spins."""
    driver = stage(where)
    if driver.run_or_none is None or next_due_ms(driver.run) is None:
        return
    driver.timer()
    due_ms = next_due_ms(driver.run)
    assert due_ms is None or due_ms > driver.now_ms
    driver.feed(TimerInput(RUN_ID))
    assert driver.last.events == ()


def test_every_event_in_every_situation_applies_or_is_illegal() -> None:
    """applications.txt says which; apply raises nothing but IllegalEvent and IllegalMove."""
    assert product.EVENT_TABLE.read_text(encoding="utf-8") == product.blocks(event_product.apply_all())


def test_no_kind_of_event_is_left_out() -> None:
    """Each member of the closed union of events is applied in each situation."""
    for where in SITUATIONS:
        kinds = {type(body) for body in event_product.bodies(stage(where).run_or_none).values()}
        assert kinds == set(get_args(ev.EventBody)), where
