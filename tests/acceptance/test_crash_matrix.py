"""A sample of the crash matrix (``make crash``) in every run of the suite; the whole is for longer runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.cells import sample
from chaos.crash import run_matrix
from perdure.connectors.local_kafka import BOOTSTRAP_VARIABLE

CELLS, LANES, SEED = 9, 2, 1


@pytest.mark.timeout(300)
def test_struck_processes_leave_every_run_whole(
    kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each role killed, stopped and asked to end at a named point: nothing lost, doubled or unlicensed."""
    monkeypatch.setenv(BOOTSTRAP_VARIABLE, kafka)
    figures = run_matrix(sample(CELLS, SEED), LANES, SEED, tmp_path / "crash")
    assert figures["violations"] == 0, figures
    assert figures["cells"] == CELLS
    assert figures["runs"] >= CELLS * 3
