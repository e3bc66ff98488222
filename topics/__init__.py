"""What flows: the topic table as data, provisioning, and the Log port with its two implementations."""
