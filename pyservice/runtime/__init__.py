"""Runtime of game servers: unpacks builds, starts processes, and recovers runs after a restart of
the service.

A keeper process beside each game server supervises it.
"""
