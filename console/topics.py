"""``perdure topics plan`` and ``apply``: bring the cluster to what the topic table says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from perdure.connectors.settings import Settings
from perdure.console.session import Session

if TYPE_CHECKING:
    from perdure.topics.provision import Change


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="The topics: what has to change, and changing it.", no_args_is_help=True)
    group.command("plan")(plan)
    group.command("apply")(apply)
    app.add_typer(group, name="topics")


def plan(ctx: typer.Context) -> None:
    """Say what apply would do; changes nothing."""
    session: Session = ctx.obj
    _tell(session, provisioned(session.settings, is_plan=True))


def apply(ctx: typer.Context) -> None:
    """Make the topics and the groups' first offsets; safe to repeat, never changes a partition count."""
    session: Session = ctx.obj
    _tell(session, provisioned(session.settings))


def provisioned(settings: Settings, *, is_plan: bool = False) -> tuple[Change, ...]:
    """Plan, and unless ``is_plan`` apply; the plan. Raises PartitionsDiffer and what the cluster answers."""
    from perdure.processors.offset_map import empty_map
    from perdure.topics import provision
    from perdure.topics.kafka_log import KafkaLog
    from perdure.topics.kafka_provision import KafkaProvision
    from perdure.topics.table import Namespace

    admin = KafkaProvision(KafkaLog(settings.bootstrap, settings.kafka).admin)
    changes = provision.plan(admin, Namespace(settings.namespace), settings.partitions, settings.replication)
    if not is_plan:
        provision.apply(admin, changes, empty_map)
    return changes


def _tell(session: Session, changes: tuple[Change, ...]) -> None:
    if session.is_json:
        print(json.dumps([change.describe() for change in changes], ensure_ascii=False))
        return
    for change in changes:
        session.say(change.describe())
    if not changes:
        session.say("Nothing has to change.")
