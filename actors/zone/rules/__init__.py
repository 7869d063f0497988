"""What zones decide. Pure: no I/O, no clock."""
