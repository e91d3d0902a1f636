"""Data plane: matchmaker, lobby servers, player admission and the configuration feed."""
