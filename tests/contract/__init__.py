"""What every adapter of a port promises, checked on real servers."""
