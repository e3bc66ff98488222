"""The orchestrator: turns commands, results and timers into events, one Kafka transaction a batch.

``host``         membership and the loop       ``processing``   the work on one assignment, aborts included
``assignment``   the numbered steps after it   ``batch``        decide, fold, project
``restore``      run-events up to the bound    ``intake``       a record becomes an input
``owned``        what is held of a partition   ``lookup``       the definition an input is decided with
``offsets``      next_unprocessed              ``outgoing``     the records that are written
``suspicion``    which input is at fault       ``transaction``  the commit path
``retention``    deletes consumed results      ``pace``         how soon to try again
``settings``     limits
"""
