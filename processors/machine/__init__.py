"""The run machine: pure, no I/O, no clock, no randomness.

decide(run, input, context) -> Decided(events, outputs)     what happens next
apply(run, event) -> Run                                    the only way state moves
appended(before, event) -> messages                         transcript rows that an event adds
project(before, event, after) -> records                    what other topics are told
next_due_ms(run), wants_slot(run), holds_slot(run)          what the host has to remember
"""
