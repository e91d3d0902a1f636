"""A self-hosted multiplayer hosting service: data plane, control plane and their command line."""

import os

# uvloop starts programs with fork(). The fork handlers of gRPC would start threads in the new
# process, and such a thread sometimes crashes it before it runs its program.
os.putenv("GRPC_ENABLE_FORK_SUPPORT", "0")
# The C core of gRPC writes lines that are not JSON to standard error. Its errors also reach Python.
os.putenv("GRPC_VERBOSITY", "NONE")
