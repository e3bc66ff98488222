"""The run view on Faust: a Table whose changelog is run-status (docs/adr/0004-faust-for-views-only.md)."""
