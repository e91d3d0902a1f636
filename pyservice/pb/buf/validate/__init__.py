"""Third-party messages that no installed package brings in the form that generated code imports."""
