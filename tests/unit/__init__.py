"""What single functions promise."""
