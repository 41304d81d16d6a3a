"""Both ends of the wire to the nodes: the leader's gateway, and the agent that runs tasks on its node.

The loop (node), the fence and the dialing know no clock, file, thread or random number but through agent.ports, so that
a simulation runs the very same agents. Imports of ours: events, commands.reports and scheduler.link.
"""
