"""Where records are kept: tables, transactions, queries by noun. Only here a database is named."""
