"""What scenarios need and how codes are provoked, a module per area of the contract."""
