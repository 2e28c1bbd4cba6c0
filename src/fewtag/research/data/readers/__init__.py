"""Data sets as people keep them: COCO, VOC, a table, a folder per label."""

from fewtag.research.data.readers.coco import read_coco
from fewtag.research.data.readers.folders import read_folders
from fewtag.research.data.readers.tables import read_table
from fewtag.research.data.readers.voc import read_voc

__all__ = ["read_coco", "read_folders", "read_table", "read_voc"]
