"""The control plane: what developers make and change, one file per noun, and what the data plane is told."""
