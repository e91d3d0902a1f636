"""The native front (`native/front`), and what it and the Python servers behind it agree on."""
