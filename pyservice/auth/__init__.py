"""Tokens of callers: their form, their authorization, and the signing keys."""
