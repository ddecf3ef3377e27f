"""Sentences that both the command line and the Spark side say."""


def no_history(what: str) -> str:
    """Return what to tell when there is nothing to replay; WHAT: a clause that says why."""
    return (
        f"there is no history to read: {what}. Journals are deleted once they are shipped unless"
        " they are kept: set connector.journal.archive.directory: DIR in"
        " reddatabase.connector.yaml; what is shipped from then on can be replayed"
    )
