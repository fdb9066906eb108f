"""The error type for mistakes a user can make and mend, and its one kind that has a place."""


class UserError(ValueError):
    """A bad argument, file or model; the message is one line and says what to change.

    Command lines print it without a traceback and exit with status 2. Every other exception
    is a defect of the program and keeps its traceback.
    """


class LogitsError(UserError):
    """Logits that no distribution can be made of, behind the tokens of text `row` of a batch."""

    def __init__(self, row: int, position: int, fault: str) -> None:
        super().__init__(f"position {position}: {fault}")
        self.row = row
