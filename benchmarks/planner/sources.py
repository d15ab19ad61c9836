"""All kinds of published tables that are known, those that ask for most columns of their own first."""

from common import Cells, Source
from recipes import RECIPES
from sweeps import SWEEPS

__all__ = ["SOURCES", "Cells", "Source"]

SOURCES = (*SWEEPS, *RECIPES)
