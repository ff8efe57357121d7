"""The exceptions fxpipe raises of its own.

    FxPipeError
    ├ CaptureError                names the user's source line and the operation
    ├ PartitionError
    │   ├ InfeasiblePlanError     no plan has that many stages (or fits in memory)
    │   └ IllegalPlanError        lists every violation, not the first
    ├ CodegenError
    ├ ScheduleError
    │   ├ UnsupportedCountsError  a named schedule cannot have so many stages, ranks, micro-batches
    │   ├ IllegalScheduleError    names rank, position, missing action
    │   └ DeadlockError           who waits for whom
    ├ ExecutionError              of another process, or of fxpipe's own running
    │   └ TransportError
    ├ FormatError                 a file of another version or fingerprint
    └ InternalError               a bug in fxpipe; how to report it

An exception that the user's own code raises inside a stage is never wrapped: it keeps its type and
gets notes (``BaseException.add_note``) for stage, micro-batch, module path and source line.
"""


class FxPipeError(Exception):
    """Anything that fxpipe itself refuses or fails at."""


class CaptureError(FxPipeError):
    """A model cannot be recorded, or a call does not match what was recorded."""


class PartitionError(FxPipeError):
    """A graph cannot be cut as asked."""


class InfeasiblePlanError(PartitionError):
    """No legal plan has the stages or the memory that were asked for."""


class IllegalPlanError(PartitionError):
    """A plan breaks rules; the message lists every one of them."""


class CodegenError(FxPipeError):
    """A stage cannot be written as source, or its source cannot be bound to the model."""


class ScheduleError(FxPipeError):
    """A schedule cannot be built or does not fit the stages and micro-batches at hand."""


class UnsupportedCountsError(ScheduleError):
    """A named schedule has no order for so many stages, ranks or micro-batches; says what it has."""


class IllegalScheduleError(ScheduleError):
    """A schedule leaves out, repeats or misplaces an action."""


class DeadlockError(ScheduleError):
    """The ranks of a schedule wait for one another."""


class ExecutionError(FxPipeError):
    """Running failed outside the user's code, or in another process."""


class TransportError(ExecutionError):
    """A value could not be handed from one rank to another."""


class FormatError(FxPipeError):
    """A saved value is of another version or was made for another model."""


class InternalError(FxPipeError):
    """A bug in fxpipe."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message}\nThis is a bug in fxpipe: please report it with the model and the call."
        )
