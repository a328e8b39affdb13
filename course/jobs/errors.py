"""The error that people see when a job cannot be started, or did not end well."""


class JobError(RuntimeError):
    """A job's problem, for people. In a notebook only the message is shown."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]
