"""Views: pure folds of what the orchestrator tells, never on a correctness path."""
