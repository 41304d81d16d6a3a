"""Properties of the core over random histories, written as sentences."""
