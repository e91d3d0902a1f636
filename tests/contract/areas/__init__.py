"""Placeholder values and error cases of operations, one module per area of the contract."""
