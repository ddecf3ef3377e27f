"""Change data capture for Firebird and RED Database servers.

The rooms of the package are the folders at the top of the repository:
``native`` (the plugin in C), ``bridge`` (what runs inside the server), ``journal``
(the journal format and all that reads it), ``config``, ``packaging`` and ``demo``.
"""

__version__ = "0.1.0"
