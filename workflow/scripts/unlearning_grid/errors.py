"""The one exception that users are meant to read."""


class UserError(Exception):
    """Bad input. The message names what is wrong (key or file, value) and how to fix it."""
