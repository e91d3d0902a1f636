"""The control plane: operations on games, their configuration, files and servers, and the feed to the data
plane.
"""
