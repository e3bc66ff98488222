"""The documented lifecycle is the coded one."""

from __future__ import annotations

from pathlib import Path

from perdure.processors.machine.lifecycle import mermaid


def test_the_diagram_in_the_docs_is_the_table_in_the_code() -> None:
    """docs/ARCHITECTURE.md holds exactly the diagram that the lifecycle table generates."""
    docs = Path(__file__).parents[3] / "docs" / "ARCHITECTURE.md"
    assert f"```mermaid\n{mermaid()}\n```" in docs.read_text(encoding="utf-8")
