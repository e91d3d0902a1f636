"""Generated messages (``hosting``), the generated error table (``errors``), and the descriptors they stand on.

``make generate`` writes everything in here but this file and ``buf``; nothing generated is edited by hand.
"""
