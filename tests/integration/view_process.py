"""One view in a process of its own. Argument: bootstrap, namespace, state folder and port as JSON.

The topic is looked at each second instead of each half minute, so that a test need not wait.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from perdure.connectors.faust_views import host
from perdure.connectors.settings import Settings
from perdure.console.view import serve_views

if __name__ == "__main__":
    asked: dict[str, Any] = json.loads(sys.argv[1])
    host.CHECK_S = 1.0  # type: ignore[misc]
    settings = Settings(
        bootstrap=asked["bootstrap"], namespace=asked["namespace"], state_dir=Path(asked["state_dir"])
    )
    sys.exit(serve_views(settings, "127.0.0.1", asked["port"]))
