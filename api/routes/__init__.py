"""The endpoints, one module a subject. Thin: they parse, ask, and answer."""
