"""What a seed draws: how large its world is, what goes wrong in it, and how often (swarm testing).

A world in which everything goes wrong at once hides what goes wrong when most is well, so each seed leaves
most disturbances out and takes the others at intensities of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from perdure.testing.virtual import seeded
from perdure.topics.log import GroupProtocol

DISTURBANCES: Final = (
    "kill", "fuse", "brake", "pause", "go_on", "start", "stop", "lose_disk", "break_disk",
    "fate", "release", "markers", "late_records", "hold_sync", "coordinator", "evict",
    "lag", "slowness", "deafness", "jump", "compact", "outage", "publish",
    "submit", "cancel", "resume", "fork", "signal", "decide", "decide_wrongly", "repeat_command",
    "poison_command", "poison_result", "poison_request", "repeat_result",
)  # fmt: skip
"""Names of methods: of ``disturbances``, ``commands`` and ``poison``."""

ALWAYS: Final = {"decide": 3.0, "start": 2.0}
"""Without these nothing would ever go on."""
RARE: Final = {
    "fate": 2.5, "fuse": 2.0, "brake": 1.5, "kill": 1.5,
    "outage": 0.08, "lose_disk": 0.5, "publish": 0.5, "poison_request": 0.5, "stop": 0.7,
}  # fmt: skip

REPLIES: Final = (
    "calls", "end", "calls_in_vain", "odd_stop", "cut", "failed", "permanent", "silent", "slow",
    "odd_content", "odd_ids", "large", "odd_arguments",
)  # fmt: skip
ENDS: Final = (
    "answer", "error", "odd", "large", "connection", "lands_later", "not_executed", "never_sent",
    "crash_after", "crash_before_landing", "slow", "too_slow", "deaf",
)  # fmt: skip
"""How a tool's call to its service ends."""
RARE_ENDS: Final = {"large": 0.05, "deaf": 0.3}
RARE_REPLIES: Final = {"large": 0.05, "permanent": 0.3}

THEMES: Final[Mapping[str, Mapping[str, float]]] = {
    "zombies": {
        "brake": 5, "pause": 3, "go_on": 4, "start": 3, "evict": 2, "kill": 1, "signal": 1, "submit": 1,
    },
    "commits": {
        "fate": 6, "release": 1, "markers": 2, "late_records": 1, "kill": 2, "fuse": 2, "brake": 2,
        "submit": 1,
    },
    "takeovers": {"fuse": 3, "kill": 3, "start": 3, "markers": 4, "brake": 2, "lose_disk": 1, "submit": 1},
    "claims": {
        "fuse": 4, "brake": 4, "kill": 2, "fate": 2, "slowness": 3, "evict": 4, "start": 4, "release": 2,
    },
    "people": {
        "cancel": 3, "resume": 4, "decide_wrongly": 2, "signal": 3, "repeat_command": 2, "fork": 1, "kill": 1,
        "submit": 1,
    },
    "ages": {"outage": 2, "compact": 2, "submit": 3, "kill": 1, "fuse": 1, "publish": 1, "resume": 1},
    "garbage": {
        "poison_command": 3, "poison_result": 2, "poison_request": 1, "repeat_result": 3, "repeat_command": 3,
        "fate": 3, "fuse": 2, "kill": 1, "submit": 2,
    },
}  # fmt: skip
"""What seeds may be about: a few disturbances that belong together, often."""
CALLED: Final[Mapping[str, float]] = {
    "answer": 2, "crash_after": 2, "crash_before_landing": 2, "lands_later": 2, "slow": 2, "too_slow": 1,
    "connection": 1,
}  # fmt: skip

TAKEN_SHARE: Final = 0.55


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One seed's world.

    ``weights``, ``replies``, ``ends``: how often each disturbance, each kind of reply and each end of a tool
    call is drawn. ``skew_ms``, ``drift``: of the clocks. ``cache_bytes``: of transcripts, per model-caller.
    """

    seed: int
    theme: str
    partitions: int
    runs: int
    disturbances: int
    processes: Mapping[str, int]
    protocol: GroupProtocol
    weights: Mapping[str, float]
    replies: Mapping[str, float]
    ends: Mapping[str, float]
    skew_ms: int
    drift: float
    cache_bytes: int
    running_runs_max: int
    approval_timeout_ms: int | None
    dispatch_wait_ms: int
    retention_ms: int
    slots: int
    budget_tokens: int | None
    late_agent: bool
    pace: Sequence[float]

    def told(self) -> dict[str, Any]:
        """Every drawn parameter, to be printed."""
        return {**asdict(self), "protocol": self.protocol.value}


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    random = seeded(seed)
    theme = random.choice(("mixed", "mixed", "mixed", *THEMES))
    weights = _swarm(random, DISTURBANCES, RARE, ALWAYS)
    ends = _swarm(random, ENDS, RARE_ENDS, {"answer": 4.0})
    orchestrators = random.choice((1, 1, 2))
    if theme in THEMES:
        weights = {**ALWAYS, **THEMES[theme]}
    if theme == "claims":
        ends = dict(CALLED)
    if theme == "zombies":
        orchestrators = 2
    return Plan(
        seed=seed,
        theme=theme,
        partitions=random.choice((1, 1, 2, 3)),
        runs=random.randint(2, 5),
        disturbances=random.choice((8, 15, 25, 40)),
        processes={
            "orchestrator": orchestrators,
            "model-caller": random.choice((1, 1, 2)),
            "tool-executor": random.choice((1, 2, 2)),
        },
        protocol=random.choice((GroupProtocol.CONSUMER, GroupProtocol.COOPERATIVE)),
        weights=weights,
        replies=_swarm(random, REPLIES, RARE_REPLIES, {"calls": 10.0, "end": 1.0}),
        ends=ends,
        skew_ms=random.choice((0, 50, 900)),
        drift=random.choice((0.0, 0.0, 0.005)),
        cache_bytes=random.choice((0, 2_000, 1 << 20)),
        running_runs_max=random.choice((1, 2, 1_000)),
        approval_timeout_ms=random.choice((None, None, 20_000)),
        dispatch_wait_ms=random.choice((20_000, 120_000, 3_600_000)),
        retention_ms=random.choice((30_000, 600_000, 14 * 86_400_000, 14 * 86_400_000)),
        slots=random.choice((1, 2, 64)),
        budget_tokens=random.choice((None, None, 2_000, 6_000)),
        late_agent=random.random() < 0.3,
        pace=random.choice(
            ((0.01, 0.05, 0.5), (0.05, 0.5, 3.0), (0.2, 3.0, 20.0), (0.01, 0.1, 0.5, 5.0, 60.0))
        ),
    )


def pick(random: Random, weights: Mapping[str, float]) -> str:
    """One of the names, by weight."""
    return random.choices(list(weights), list(weights.values()))[0]


def _swarm(
    random: Random, names: Sequence[str], rare: Mapping[str, float], always: Mapping[str, float]
) -> dict[str, float]:
    weights: dict[str, float] = {}
    for name in names:
        taken = random.random() < TAKEN_SHARE
        weight = round(random.choice((0.3, 1.0, 3.0)) * rare.get(name, 1.0), 3)
        if name in always:
            weights[name] = always[name]
        elif taken:
            weights[name] = weight
    return weights
