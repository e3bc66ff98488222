"""What people and programs ask of runs, at any moment and not always sensibly."""

from __future__ import annotations

import json
from typing import Final

from perdure.processors.clock import new_id
from perdure.schemas.codec import encode
from perdure.schemas.commands import Cancel, Command, CommandBody, Decide, Fork, Resume, Signal, Submit
from perdure.schemas.outputs import Approval
from perdure.schemas.values import Budget, Verdict
from perdure.topics.partitioner import partition_of
from perdure.topics.table import RUN_COMMANDS
from simulator.service import AGENT, LATE_AGENT
from simulator.world import Sent, World

DECIDED: Final = b'"decided"'
UNTIL_S: Final = (0.5, 5.0, 60.0, 900.0)


class Commands:
    """``runs``: ids that were submitted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random
        self.runs: list[str] = []
        self._forks = 0

    def send(self, run_id: str, body: CommandBody, *, is_forged: bool = False) -> str:
        """Write a command; sometimes onto the wrong partition, as other clients' partitioners do."""
        world = self._world
        command_id = new_id(world.entropy)
        partition = partition_of(run_id, world.plan.partitions)
        if self._random.random() < 0.1:
            partition = self._random.randrange(world.plan.partitions)
        value = encode(Command(body, command_id))
        place = world.write(RUN_COMMANDS, partition, run_id.encode(), value)
        sent = world.commands.setdefault(command_id, Sent(run_id, command_id, is_forged))
        if place is not None:
            sent.places.append(place)
        return command_id

    # ---- what may be drawn ---------------------------------------------------------------------------------

    def submit(self) -> None:
        random, world = self._random, self._world
        if self.runs and random.random() < 0.05:
            run_id = random.choice(self.runs)  # somebody takes an id twice
        else:
            run_id = f"r{len(self.runs)}"
            self.runs.append(run_id)
        now_ms = world.cluster.now_ms
        tokens = world.plan.budget_tokens
        agent = LATE_AGENT if random.random() < 0.2 else AGENT
        body = Submit(
            agent=agent,
            input=json.dumps(f"run <{run_id}> " + "x" * random.choice((0, 10, 300))).encode(),
            version=random.choice((None, None, None, "2")) if agent == AGENT else None,
            deadline_ms=None if random.random() < 0.8 else now_ms + round(random.choice(UNTIL_S) * 1000),
            not_before_ms=None if random.random() < 0.9 else now_ms + random.randrange(60_000),
            max_turns=random.choice((None, None, 1, 3)),
            budget=self._budget(tokens),
        )
        self.send(run_id, body)

    def _budget(self, tokens: int | None) -> Budget | None:
        if tokens is None:
            return None
        if self._random.random() < 0.3:
            return Budget(cost_nano_usd=tokens * 20)
        return Budget(input_tokens=4 * tokens, output_tokens=tokens)

    def cancel(self) -> None:
        if self.runs:
            self.send(self._any(), Cancel(self._random.choice(("enough", ""))))

    def fork(self) -> None:
        """Go on from where a run stood, if it ever did."""
        if not self.runs:
            return
        self._forks += 1
        random = self._random
        body = Fork(
            turn=random.choice((None, None, 1, 2)),
            message=random.choice((None, "another way", "another way")),
            max_turns=random.choice((None, 2)),
            budget=self._budget(20_000) if random.random() < 0.3 else None,
        )
        self.send(f"{self._any()}~f{self._forks}", body)

    def _any(self) -> str:
        """Any run, children and forks among them."""
        known = sorted({*self.runs, *self._world.ledger.runs})
        return self._random.choice(known)

    def resume(self) -> None:
        if self.runs:
            budget = self._budget(20_000) if self._random.random() < 0.3 else None
            message = self._random.choice((None, None, "go on", " "))
            extra = self._random.choice((None, 1, 2))
            self.send(self._any(), Resume(message, extra, budget))

    def signal(self) -> None:
        if self.runs:
            self.send(self._any(), Signal(self._random.choice(("listen", "and this", ""))))

    def decide(self) -> None:
        """Answer one question as it may be answered."""
        if questions := self._questions():
            self.answer(self._random.choice(questions))

    def decide_all(self) -> None:
        for question in self._questions():
            self.answer(question)

    def answer(self, question: Approval) -> None:
        verdict = self._random.choice(question.verdicts)
        self._decide(question, verdict, question.token)

    def decide_wrongly(self) -> None:
        """Any verdict, an old token, a call that nobody asks about."""
        questions = self._questions()
        if not questions:
            if self.runs:
                body = Decide("none", Verdict.APPROVE, "no token", "somebody")
                self.send(self._any(), body)
            return
        question = self._random.choice(questions)
        verdict = self._random.choice(list(Verdict))
        token = self._random.choice((question.token, "forged", question.token[:-1]))
        self._decide(question, verdict, token)

    def _decide(self, question: Approval, verdict: Verdict, token: str) -> None:
        body = Decide(
            call_id=question.call_id,
            verdict=verdict,
            token=token,
            decided_by="somebody",
            result=self._random.choice((DECIDED, b"{", None)) if verdict is Verdict.RAN else None,
            message=self._random.choice((None, "so be it")),
        )
        is_allowed = token == question.token and verdict in question.verdicts
        sent = self._world.commands[self.send(question.run_id, body, is_forged=not is_allowed)]
        is_valid = verdict is not Verdict.RAN or body.result == DECIDED
        own = partition_of(question.run_id, self._world.plan.partitions)
        if is_allowed and is_valid and sent.places and sent.places[0][1] == own:
            self._world.decided_ms.setdefault(token, self._world.cluster.now_ms)

    def _questions(self) -> list[Approval]:
        found = self._world.ledger.questions
        return [found[key] for key in sorted(found)]

    def repeat_command(self) -> None:
        """A client that heard no answer sends the very same command again."""
        world = self._world
        known = [each for each in world.commands.values() if each.places]
        if not known:
            return
        sent = self._random.choice(known)
        topic, partition, offset = sent.places[0]
        for entry in world.cluster.stored(topic, partition):
            if entry.offset == offset:
                place = world.write(RUN_COMMANDS, partition, entry.key, entry.value)
                if place is not None:
                    sent.places.append(place)
                world.marks.add("command_repeated")
