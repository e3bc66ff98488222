"""The crash matrix as data: nothing is left out, and a sample is what its seed says."""

from __future__ import annotations

from collections import Counter

from chaos.cells import SIGNALS, all_cells, sample
from perdure.processors.crash_points import CRASH_POINTS
from perdure.topics.table import Role


def test_every_crash_point_of_the_product_is_in_the_matrix() -> None:
    """Each named point is struck by each signal, with its disk kept and lost."""
    struck = {(cell.point, cell.signal, cell.is_forgotten) for cell in all_cells()}
    assert struck == {
        (point, how, lost) for point in CRASH_POINTS for how in SIGNALS for lost in (False, True)
    }


def test_a_sample_of_the_size_of_the_matrix_is_the_matrix() -> None:
    """Nothing is drawn twice before everything was drawn, so 300 cells hold all of it."""
    cells = all_cells()
    assert len(cells) <= 300
    assert Counter(sample(len(cells), 7)) == Counter(cells)
    assert len(set(sample(300, 7))) == len(cells)


def test_a_small_sample_has_every_role_and_every_signal() -> None:
    """Nine cells are enough for each role to be struck by each signal; one seed is one sample."""
    small = sample(9, 3)
    assert {(cell.role, cell.signal) for cell in small} == {(role, how) for role in Role for how in SIGNALS}
    assert small == sample(9, 3)
    assert small != sample(9, 4)
