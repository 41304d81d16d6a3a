"""The agents, their runtimes and the wire: against real processes and real gRPC."""
