"""The research wing: the paper, its rivals, their data and their measurement; needs `fewtag[research]`."""
