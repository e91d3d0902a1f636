"""What runs game servers: builds unpacked, processes under keepers, found again after a restart. Knows no
records and no transport.
"""
