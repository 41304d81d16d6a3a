"""Verify what was recorded, and schedule recorded days again under another policy."""
