"""`diglot report`: a page of results, which a browser shows without a network.

`diglot.bench.result_files` finds and checks files. `views.py` makes pictures and tables of them,
and `page.py` puts the page together.
"""

from diglot.bench.result_files import read
from diglot.tools.report.page import render

__all__ = ["read", "render"]
