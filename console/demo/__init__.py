"""The demo: a run on real Kafka survives a kill -9 in the worst place, and the outside world is counted.

``points`` names the places; ``stage`` puts the outside world up (broker, message service, model); ``fleet``
holds the worker processes; ``story`` lets it happen; ``ledger`` counts what was really done; ``report`` says
it all to a person and, in one JSON line, to a program; ``cli`` puts these together.
"""

from __future__ import annotations

from typing import Final

EXIT_INTERRUPTED: Final = 130
