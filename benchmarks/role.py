"""A worker process of one role, put together as ``perdure worker`` does, with the workload's model.

``python -m benchmarks.role ROLE SETTINGS.json [--model PLACE] [--profile cpu|wall]``; SIGTERM drains.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import sys
from pathlib import Path

from benchmarks.profiling import CLOCKS, Profiles
from perdure.connectors.settings import load_settings
from perdure.console.serving import run_worker
from perdure.processors.ports import ModelPort
from perdure.topics.table import Role


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.role")
    parser.add_argument("role", choices=[each.value for each in Role])
    parser.add_argument("settings", type=Path, help="JSON object of settings by name")
    parser.add_argument("--model", help="module:function that makes a ModelPort; else the Messages API")
    parser.add_argument("--profile", choices=CLOCKS, help="write <role>.<thread>.pstats beside the settings")
    options = parser.parse_args()

    folder = options.settings.parent
    settings = load_settings({}, folder=folder, flags=json.loads(options.settings.read_bytes())).settings
    role = Role(options.role)
    profiles: Profiles | None = None
    if options.profile is not None:
        profiles = Profiles(frozenset({role.value, f"perdure-{role.value}"}), options.profile)
        profiles.begin()
    code = run_worker(settings, (role,), None if options.model is None else _made(options.model))
    if profiles is not None:
        profiles.write(folder, role.value)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as the real worker: a tool's thread must not keep the process alive


def _made(place: str) -> ModelPort:
    module, _, name = place.partition(":")
    model: ModelPort = getattr(importlib.import_module(module), name)()
    return model


if __name__ == "__main__":
    main()
