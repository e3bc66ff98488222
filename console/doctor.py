"""``perdure doctor``: is everything well, and if not, what to do."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer

from perdure.console.findings import Finding, Level
from perdure.console.session import Session

EXIT_PROBLEM: Final = 1
PATIENCE_S_DEFAULT: Final = 25.0
MARKS: Final = {
    Level.OK: ("✔", "green"),
    Level.NOTE: ("·", "dim"),
    Level.WARNING: ("!", "yellow"),
    Level.PROBLEM: ("✘", "red"),
}


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    ctx: typer.Context,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also compare the local rows with the fold of run-events.")
    ] = False,
    patience_s: Annotated[
        float,
        typer.Option(
            min=0.0, help="How long an open transaction may stand still before it counts as hanging."
        ),
    ] = PATIENCE_S_DEFAULT,
) -> None:
    """Check broker, topics, groups, transactions, schemas and runs; exit code 1 if somebody has to act."""
    from perdure.console.checks import examined, guarded
    from perdure.console.patient import Patient
    from perdure.console.verification import verify as verified
    from perdure.processors.clock import SystemClock
    from perdure.topics.kafka_log import KafkaLog

    session: Session = ctx.obj
    settings = session.settings
    log = KafkaLog(settings.bootstrap, settings.kafka, probe=f"{settings.namespace}.probe")
    patient = Patient(settings, log, SystemClock(), patience_s)
    findings = examined(patient)
    if verify:
        findings += guarded("rows", lambda: verified(settings, log, patient.clock))
    _print(session, findings)
    if any(each.level is Level.PROBLEM for each in findings):
        raise typer.Exit(EXIT_PROBLEM)


def _print(session: Session, findings: list[Finding]) -> None:
    if session.is_json:
        told = [
            {"check": each.check, "level": each.level.value, "text": each.text, "remedy": each.remedy}
            for each in findings
        ]
        is_well = all(each.level is not Level.PROBLEM for each in findings)
        print(json.dumps({"ok": is_well, "findings": told}, ensure_ascii=False))
        return
    for each in findings:
        mark, style = MARKS[each.level]
        session.out.print(f"{mark} {each.check:<13} {each.text}", style=style, markup=False)
        if each.remedy and each.level is not Level.OK:
            session.out.print(f"  {'':<13} {each.remedy}", markup=False)
