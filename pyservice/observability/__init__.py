"""What the service tells its operators: metrics and logs."""
