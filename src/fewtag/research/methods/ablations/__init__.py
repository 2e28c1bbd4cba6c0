"""The paper's ablations: its model with one piece replaced, a file each."""

from fewtag.research.methods.ablations.bilinear_pooling import BilinearPooling
from fewtag.research.methods.ablations.global_attention import GlobalAttention
from fewtag.research.methods.ablations.local_query import LocalQuery
from fewtag.research.methods.ablations.no_cmw_loss import NoCmwLoss
from fewtag.research.methods.ablations.simple_attention import SimpleAttention
from fewtag.research.methods.ablations.simple_local_attention import SimpleLocalAttention

__all__ = [
    "BilinearPooling",
    "GlobalAttention",
    "LocalQuery",
    "NoCmwLoss",
    "SimpleAttention",
    "SimpleLocalAttention",
]
