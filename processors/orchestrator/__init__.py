"""The orchestrator: turns commands, results and timers into events, one Kafka transaction a batch.

``settings``     limits                        ``assignment``   the numbered steps after every assignment
``intake``       a record becomes an input     ``restore``      fold run-events up to the bound
``batch``        decide, apply, project        ``owned``        what is held of one partition
``transaction``  the commit path               ``suspicion``    batches that can not be committed
``offsets``      next_unprocessed              ``retention``    deletes results that were consumed
``host``         the loop that joins them
"""
