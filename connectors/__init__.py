"""What touches the world: models, tools, triggers and sinks, secrets, the local broker."""
