"""The journal folder on disk: its names, locks and shared pages, its ledgers, and what lies
beside."""
