"""The data plane: what its operations do over the engine, and the configuration that it was fed."""
