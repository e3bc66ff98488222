"""perdure: LLM agents as durable, event-sourced state machines on Kafka.

This is the light facade: importing it loads no Kafka client, no RocksDB and no model SDK.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
