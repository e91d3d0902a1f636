"""Tokens of callers: their syntax, their authorization, and the signing keys."""
