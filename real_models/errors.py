"""The one error type for mistakes a user can make and mend."""


class UserError(ValueError):
    """A bad argument, file or model; the message is one line and says what to change.

    Command lines print it without a traceback and exit with status 2. Every other exception
    is a defect of the program and keeps its traceback.
    """
