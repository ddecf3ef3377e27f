"""The commands ``ship``, ``status``, ``tail``, ``journal`` and ``snapshot``, a module each."""
