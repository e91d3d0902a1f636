"""Storage of the control plane: records in a database, and objects in a folder or S3 bucket."""
