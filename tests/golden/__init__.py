"""Logs as earlier versions wrote them: they must be readable for ever (DESIGN I-10)."""
