"""The wire: the proto and the code generated from it. Only agent.wire uses it."""
