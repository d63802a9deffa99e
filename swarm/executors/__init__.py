"""What a task does: one module a kind, and the registry that finds them."""
