"""``python -m perdure.console.demo``."""

from __future__ import annotations

import sys

from perdure.console.demo.cli import main

sys.exit(main())
