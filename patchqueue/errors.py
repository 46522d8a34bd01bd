"""The one exception a user of the queue ever sees."""


class QueueError(Exception):
    """A failure to report in one message: what happened, where, what to type next."""
