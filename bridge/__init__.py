"""Code inside the server process: configuration, journals, states, the shipper's start.

``embedded`` is the entry that the plugin calls; ``service`` ties the parts together.
"""
