"""What decides: the pure run machine, and the hosts that run it against a log."""
