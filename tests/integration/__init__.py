"""Adapters and entry points against real servers, which the tests start themselves."""
