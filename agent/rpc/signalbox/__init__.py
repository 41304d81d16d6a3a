"""Package path of the proto."""
