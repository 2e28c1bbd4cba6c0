"""The HTTP API: a bank or a studio project, served on the loopback."""

TOKEN_VARIABLE = "FEWTAG_TOKEN"
