"""The error for a job that cannot be started, or did not end well."""


class JobError(RuntimeError):
    """A job's problem. A notebook shows only the message."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]
