"""`diglot report`: a page of results, which a browser shows without a network.

`results.py` finds and checks files, `views.py` says what is shown of them as figures
(`figures.py`) and tables (`tables.py`, `ranking.py`), and `page.py` puts the page together.
"""

from diglot.tools.report.page import render
from diglot.tools.report.results import read

__all__ = ["read", "render"]
