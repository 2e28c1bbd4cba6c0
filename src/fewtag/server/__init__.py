"""The HTTP API: a bank or a studio project, served on the loopback."""
