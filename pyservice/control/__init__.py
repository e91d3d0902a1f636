"""The control plane: operations on games, their configuration, files and servers, and the
configuration feed to the data plane.
"""
