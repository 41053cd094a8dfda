"""Rollouts as other systems write them: a table of what their fields mean, read one way and written the other.

>>> FORMATS["verl"].read({"input": "1 + 1 =", "output": "2", "gts": "2", "score": 1.0, "step": 3}).reward
1.0
"""

from gradus.data.exchange.formats import FORMATS, Format

__all__ = ["FORMATS", "Format"]
