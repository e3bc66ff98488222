"""``python -m perdure.console.demo``."""

from __future__ import annotations

import sys

from perdure.console.demo import EXIT_INTERRUPTED

try:
    from perdure.console.demo.cli import main  # takes a second: a Ctrl-C may well fall into it

    code = main()
except KeyboardInterrupt:
    code = EXIT_INTERRUPTED
sys.exit(code)
