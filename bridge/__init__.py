"""Code inside the server process: configuration, journals, verdicts, the shipper's start.

``embedded`` is the entry that the plugin calls; ``service`` ties the parts together.
"""
