"""Pages in a real browser: Chromium, without a screen and without a network."""
