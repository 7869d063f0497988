"""Why a caller of batches is refused."""


class BatchRefused(ValueError):
    """Nothing was done. The message says what was tried, which value, and what to do. `code`: `bad`, `state` or
    `not_found`. `field`: which of the values is wrong, if one is."""

    def __init__(self, reason: str, *, code: str = "bad", field: str = "") -> None:
        super().__init__(reason)
        self.code, self.field = code, field
