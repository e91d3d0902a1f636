"""Runtime of game servers: unpacks builds, starts processes under keepers, and recovers runs after
a restart.
"""
